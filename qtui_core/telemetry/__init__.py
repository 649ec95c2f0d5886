"""What the machine says about itself."""
