"""The text the demo model was trained on: the Python sources of the standard library.

It is free to use (PSF licence), every Python installation carries it, and it needs no
download. Whole files are held back by a hash of their path, so that the split does not
depend on the order of a directory listing.
"""

import hashlib
import sysconfig
from pathlib import Path

#: Not prose or code a person wrote for reading: tests, generated tables, vendored copies.
SKIPPED_FOLDERS = frozenset(
    {
        "site-packages",
        "test",
        "tests",
        "idlelib",
        "lib2to3",
        "encodings",
        "ensurepip",
        "__pycache__",
    }
)
SKIPPED_FILES = frozenset({"pydoc_data/topics.py"})
HELD_BACK_ONE_IN = 24
HELD_BACK_BYTES = 128 * 1024


def read_corpus() -> tuple[bytes, bytes]:
    """Training text and held-back text, each the concatenation of whole files separated by
    a zero byte. The held-back text is cut to HELD_BACK_BYTES at a line end."""
    root = Path(sysconfig.get_path("stdlib"))
    training: list[bytes] = []
    held_back: list[bytes] = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED_FOLDERS.intersection(relative.parts) or relative.as_posix() in SKIPPED_FILES:
            continue
        if relative.name.startswith("_sysconfigdata"):
            continue
        digest = hashlib.sha256(relative.as_posix().encode()).digest()
        chosen = held_back if digest[0] % HELD_BACK_ONE_IN == 0 else training
        chosen.append(path.read_bytes())
    excerpt = b"\0".join(held_back)[:HELD_BACK_BYTES]
    return b"\0".join(training), excerpt[: excerpt.rfind(b"\n") + 1]
