"""The families of models, one small function each: config.json to a ModelShape."""
