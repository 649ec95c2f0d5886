"""The terminal app. Nothing here may import torch, transformers or pynvml: these run in the
engine's child process, so that they never delay a key press."""

import os

# Textual draws at most this many frames a second, and reads the variable once, when it is imported.
# A key waits for the next frame: twice Textual's default of 60 halves that wait.
os.environ.setdefault("TEXTUAL_FPS", "120")
