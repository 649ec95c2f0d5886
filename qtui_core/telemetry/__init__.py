"""What the machine says about itself. Imported by the engine only."""
