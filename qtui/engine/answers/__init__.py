"""The answers of the engine: made in its process, drawn in the process of the screen. Nothing here
imports numpy."""
