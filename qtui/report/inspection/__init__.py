"""The documents of `qtui inspect`: one model, two models, and sensitivity."""
