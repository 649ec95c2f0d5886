"""The text that a model is run on. Standard library only, so that a text can be checked before a
model is loaded."""

from __future__ import annotations

import codecs
import os
from pathlib import Path
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.models.demo import HELD_BACK_TEXT
from qtui_core.models.quoting import quoted

#: English prose to learn from, and prose that is held back; texts/LICENSE.txt says where from.
PROSE: Final = Path(__file__).with_name("texts") / "prose.txt"
HELD_BACK_PROSE: Final = PROSE.with_name("prose_held_back.txt")
#: The most bytes read of a file; a hundred times what any run needs.
MAX_BYTES = 4 << 20
#: A few zero bytes separate documents, as in the demo's own text; many mean that the file is not
#: text.
MOST_ZEROS = 1e-3


@dataclass(frozen=True)
class Text:
    """Text to run a model on, and where it is from, for people. `partial`: only the beginning of a
    file was read."""

    content: str
    origin: str
    partial: bool = False


def builtin_text() -> Text:
    """The text that the demo model was not trained on: Python sources."""
    return Text(HELD_BACK_TEXT.read_text(encoding="utf-8"), "the built-in text")


def text_to_choose_by(source: str | None, *, demo: bool) -> Text:
    """The text of a file (`source`), without one a text inside qtui. What is chosen for a model is
    chosen by its first half only: the second, and HELD_BACK_PROSE, are for judging."""
    if source is not None:
        return read_text(source)
    return builtin_text() if demo else Text(PROSE.read_text(encoding="utf-8"), "prose inside qtui")


def read_text(path: str, purpose: str = "calibration") -> Text:
    """The text of a file. `purpose` says in errors what the text is for.

    Raises:
        UsageError: the file cannot be read, is empty, or is not text.
    """
    place = Path(os.path.expanduser(path))
    if "\0" in path or not path.strip():
        raise UsageError(f"{quoted(path)} names no file.")

    def refused(fault: str) -> UsageError:
        return UsageError(f"{quoted(path)} {fault}; {purpose} needs a text file.")

    try:
        if not place.is_file():
            raise refused("is a folder" if place.is_dir() else "is no file")
        with place.open("rb") as stream:
            raw = stream.read(MAX_BYTES)
            partial = bool(stream.read(1))
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise refused(f"cannot be read: {reason}") from error
    if not raw.strip():
        raise refused("is empty")
    if raw.count(0) > MOST_ZEROS * len(raw):
        raise refused(f"is binary (a zero byte at {raw.index(0):,})")
    try:
        # The end of what was read may cut a character in two.
        content = codecs.getincrementaldecoder("utf-8")().decode(raw, final=not partial)
    except UnicodeDecodeError as error:
        raise refused(f"is no UTF-8 text (byte {error.start:,})") from error
    return Text(content, place.name, partial)
