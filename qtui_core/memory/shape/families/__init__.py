"""The families of models: each turns a config.json into a ModelShape."""
