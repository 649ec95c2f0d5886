"""The text a model is run on. Standard library only, so that who asks for a run can look first."""

from __future__ import annotations

import codecs
import os
from pathlib import Path

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.models.demo import HELD_BACK_TEXT
from qtui_core.models.quoting import quoted

#: How much of a file is read; a hundred times what any run needs.
MAX_BYTES = 4 << 20
#: Zero bytes separate documents here and there, as in the demo's own text; in what is no text they
#: are many.
MOST_ZEROS = 1e-3


@dataclass(frozen=True)
class Text:
    """Text to run a model on, and where it is from, for people. `partial` where a file goes
    on after what was read of it."""

    content: str
    origin: str
    partial: bool = False


def builtin_text() -> Text:
    """The text the demo model was not trained on: Python sources."""
    return Text(HELD_BACK_TEXT.read_text(encoding="utf-8"), "the built-in text")


def read_text(path: str, purpose: str = "calibration") -> Text:
    """The text of a file. `purpose` is what needs it, for what is said where it is none.

    Raises:
        UsageError: it cannot be read, is empty, or is no text.
    """
    place = Path(os.path.expanduser(path))
    if "\0" in path or not path.strip():
        raise UsageError(f"{quoted(path)} names no file.")
    try:
        if not place.is_file():
            kind = "a folder" if place.is_dir() else "no file" if place.exists() else "not there"
            raise UsageError(f"{quoted(path)} is {kind}; {purpose} needs a text file.")
        with place.open("rb") as stream:
            raw = stream.read(MAX_BYTES)
            partial = bool(stream.read(1))
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise UsageError(f"{quoted(path)} cannot be read: {reason}.") from error
    if not raw.strip():
        raise UsageError(f"{quoted(path)} is empty; {purpose} needs text.")
    if raw.count(0) > MOST_ZEROS * len(raw):
        raise UsageError(
            f"{quoted(path)} is binary (a zero byte at {raw.index(0):,}); {purpose} needs text."
        )
    try:
        # A character may be cut where the reading stopped.
        content = codecs.getincrementaldecoder("utf-8")().decode(raw, final=not partial)
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{quoted(path)} is no UTF-8 text (byte {error.start:,}); {purpose} needs text."
        ) from error
    return Text(content, place.name, partial)
