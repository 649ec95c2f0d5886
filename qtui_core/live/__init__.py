"""What a real run reports, and how that is held against its estimate. Standard library only."""
