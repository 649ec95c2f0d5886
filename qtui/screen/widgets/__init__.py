"""What the panels draw with: small widgets that render lines, and the drawing they share."""
