"""Textual's parser of keys, for an Esc that arrives together with the next key.

A terminal sends Alt and a key as Esc and that key, so Textual takes both that arrive in one packet,
as over a slow line, for Alt. No key of the app is with Alt, and an Esc that is lost leaves the user
in a field or a list: here such an Esc is a key of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from textual._xterm_parser import XTermParser
from textual.events import Key
from textual.message import Message

ESC: Final = "\x1b"
#: Behind an Esc that begins no sequence: "[" and "O" begin those of keys, and Alt with Backspace,
#: which removes a word, is no key that follows an Esc.
_ALONE: Final = re.compile(r"(?<=\x1b)(?=[^\x1b\[O\x7f])")


class KeyParser(XTermParser):
    """Tells Esc and the key behind it as two keys, in their order."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._last = ""

    def feed(self, data: str) -> Iterable[Message]:
        *parts, rest = _ALONE.split(self._last + data)
        if parts and self._last:  # the Esc is of the packet before, and still waits
            parts[0] = parts[0].removeprefix(self._last)
        elif self._last:
            rest = rest.removeprefix(self._last)
        for part in parts:
            yield from super().feed(part) if part else ()
            yield from self._end_of_wait()
        yield from super().feed(rest)
        self._last = ESC if data.endswith(ESC) else ""

    def tick(self) -> Iterable[Message]:
        yield from super().tick()
        if self._timeout_time is None:
            self._last = ""

    def _end_of_wait(self) -> Iterable[Message]:
        """What is known of a sequence when no more of it comes."""
        self._timeout_time = 0.0
        yield from super().tick()

    def _sequence_to_key_events(self, sequence: str, alt: bool = False) -> Iterable[Key]:
        if alt:  # it began like a sequence, and nothing followed
            yield Key("escape", ESC)
        try:
            yield from super()._sequence_to_key_events(sequence)
        except (ValueError, OverflowError):  # a number of the sequence stands for no character
            return
