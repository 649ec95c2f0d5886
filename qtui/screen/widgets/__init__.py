"""Small widgets that render lines, and the drawing that they share."""
