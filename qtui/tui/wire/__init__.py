"""What goes to the terminal: the difference from the screen sent last. Nothing here knows qtui: it
serves any app of Textual."""
