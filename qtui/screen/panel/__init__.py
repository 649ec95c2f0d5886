"""What every panel is: its body, its sentence, its keys, and the questions that it asks."""
