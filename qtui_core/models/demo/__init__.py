"""The embedded demo model, a small byte-level Llama, really trained; and the text it learned from.

The package ships `config.json`, `model.safetensors`, the card (README.md) and the text the loss in
the card was measured on. Opening the demo needs no torch. The training text, the Python sources of
the standard library, is free to use (PSF licence), and every Python installation carries it. Whole
files are held back by a hash of their path, so that the split does not depend on the order of a
directory listing.
"""

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

DEMO_FOLDER = Path(__file__).parent
HELD_BACK_TEXT = DEMO_FOLDER / "held_back.txt"
#: Not prose or code a person wrote for reading: tests, generated tables, vendored copies.
SKIPPED_FOLDERS = frozenset(
    ("site-packages", "test", "tests", "idlelib", "lib2to3", "encodings", "ensurepip",
     "__pycache__")
)  # fmt: skip
SKIPPED_FILES = frozenset({"pydoc_data/topics.py"})
HELD_BACK_ONE_IN = 24


def training_bytes(most: int) -> bytes:
    """The first `most` bytes of the training text; no more files are read than that takes."""
    parts: list[bytes] = []
    for path, held in corpus_files():
        if sum(map(len, parts)) >= most:
            break
        if not held:
            parts.append(path.read_bytes())
    return b"\0".join(parts)[:most]


def corpus_files() -> Iterator[tuple[Path, bool]]:
    """(path, whether it is held back) of each file, in an order that no machine changes."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED_FOLDERS.intersection(relative.parts) or relative.as_posix() in SKIPPED_FILES:
            continue
        if relative.name.startswith("_sysconfigdata"):
            continue
        digest = hashlib.sha256(relative.as_posix().encode()).digest()
        yield path, digest[0] % HELD_BACK_ONE_IN == 0
