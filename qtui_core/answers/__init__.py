"""What the sciences answer, as data without numpy: it crosses to the screen as it is."""
