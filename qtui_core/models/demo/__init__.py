"""The embedded demo model: a small byte-level Llama, really trained. See README.md beside it.

The package ships `config.json`, `model.safetensors`, the card and the text the loss in the
card was measured on. `train.py` and `evaluate.py` made and check them; nothing in qtui
imports those two, so opening the demo needs no torch.
"""

from pathlib import Path

DEMO_FOLDER = Path(__file__).parent
HELD_BACK_TEXT = DEMO_FOLDER / "held_back.txt"
