"""The terminal app. Nothing here may import torch, transformers or pynvml: the engine's child
process owns those, so that a key press is never kept waiting by them."""

import os

# Textual paints at most this often a second, and reads it once, when it is imported. A key waits
# for the next frame: twice Textual's default of 60 makes that wait half as long.
os.environ.setdefault("TEXTUAL_FPS", "120")
