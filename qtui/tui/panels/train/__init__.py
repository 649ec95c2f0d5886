"""Panel 5: training steps, compared with their estimate while they run."""
