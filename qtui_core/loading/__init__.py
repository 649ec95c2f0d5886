"""A model that runs on this machine, and the text that it reads: for a captured activation, an
evaluation, an experiment or a training run. `model` and `tokens` need torch and transformers."""
