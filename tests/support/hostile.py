"""Puts control characters that a terminal would obey into every text of a document, and finds them
in output."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

#: Renames the window and clears the screen (also in C1 codes), changes the writing direction, hides
#: a mark, moves the cursor, rings the bell, and ends a line. The words make it easy to find.
OBEYED = (
    "\x1b]0;EVIL\x07\x1b[2;31337J\x9b2;31337J\u202eEVIL\u2066\u200bEVIL\rEVIL\x08EVIL\x7f"
    "EVIL\nEVIL[/b]"
)
#: The same as bytes on a terminal. A Textual screen ends its own lines with a plain newline.
RAW = re.compile(
    rb"\x1b\]0;EVIL|\x1b\[2;31337J|\xc2[\x80-\x9f]|\xe2\x80[\x8b-\x8f\xaa-\xae]"
    rb"|\xe2\x81[\xa0-\xaf]|EVIL\r+(?!\n)EVIL|EVIL\x08|EVIL\x07|EVIL\x7f|EVIL\r*\nEVIL\[/b"
)

Shape = tuple[str, ...]


def poison(text: str) -> str:
    """The text followed by all of these control characters."""
    return text + OBEYED


def shapes(value: Any, at: Shape = ()) -> Iterator[Shape]:
    """The places of texts in a JSON document; all items of a list are one place. A key is a place
    too, as it may be a name that is shown."""
    if isinstance(value, str):
        yield at
    elif isinstance(value, dict):
        for key, item in value.items():
            yield (*at, key, "as a key")
            yield from shapes(item, (*at, key))
    elif isinstance(value, list):
        for item in value:
            yield from shapes(item, (*at, "*"))


def poisoned(value: Any, places: frozenset[Shape], at: Shape = ()) -> Any:
    """The document with poison at these places. A key is not replaced: a similar one is added."""
    if isinstance(value, str):
        return poison(value) if at in places else value
    if isinstance(value, list):
        return [poisoned(item, places, (*at, "*")) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: poisoned(item, places, (*at, key)) for key, item in value.items()}
    keys = [key for key in value if (*at, key, "as a key") in places]
    return found | {poison(key): found[key] for key in keys}


def hostile(document: Any, accepts: Callable[[Any], bool]) -> tuple[Any, list[Any]]:
    """(the document with poison in all places that `accepts` allows, a document for each place that
    it does not)."""
    taken: frozenset[Shape] = frozenset()
    refused: list[Any] = []

    def take(places: list[Shape]) -> None:
        nonlocal taken
        if accepts(poisoned(document, taken.union(places))):
            taken = taken.union(places)
        elif len(places) == 1:
            refused.append(poisoned(document, frozenset(places)))
        else:
            take(places[: len(places) // 2])
            take(places[len(places) // 2 :])

    take(list(dict.fromkeys(shapes(document))))
    return poisoned(document, taken), refused


def raw(written: bytes) -> list[str]:
    """The parts of the poison that reached a terminal unchanged, with their surroundings."""
    return [
        written[max(0, found.start() - 60) : found.end() + 20].decode(errors="backslashreplace")
        for found in RAW.finditer(written)
    ]
