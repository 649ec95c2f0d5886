"""What a real run reports, and its comparison with the estimate. Standard library only."""
