"""What the engine answers: made in its process, drawn in that of the screen. No numpy here."""
