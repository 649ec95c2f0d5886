"""What a real run reports, and how it is compared with its estimate. Standard library only."""
