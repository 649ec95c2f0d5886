"""What is on the terminal before Textual is imported: the modes of the screen, and its first lines.
Only what these need is imported here."""
