"""Panel 6: experiments in training numerics, run and looked at."""
