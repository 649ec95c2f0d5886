"""config.json -> ModelShape, one small function for each family of models."""
