"""What a program paints, read from the escapes that it writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from rich.cells import get_character_cell_size, split_graphemes

from qtui.tui.wire.pens import PLAIN, Pen

_STRINGS: Final = ("\x1b]", "\x1bP", "\x1bX", "\x1b^", "\x1b_")
_STRING: Final = re.compile(r"(\x1b[]PX^_].*?(?:\a|\x1b\\))", re.DOTALL)
_CUT: Final = re.compile(r"\x1b(?:[]PX^_][^\a\x1b]*\x1b?|\[[0-?]*[ -/]*)?\Z")
_SEQUENCE: Final = re.compile(r"\[[0-?]*[ -/]*[@-~]|[ -/]*[0-~]")
_POSITION: Final = re.compile(r"\[([0-9]*)(?:;([0-9]*))?[Hf]")
_SGR: Final = re.compile(r"\[[0-9:;]*m")
_CONTROL: Final = re.compile(r"([\x00-\x1f\x7f-\x9f])")


class PaintedScreen:
    """A screen of `width` by `height` cells as it is painted: with text, line feeds, positions of
    the cursor, SGR and hyperlinks.

    text, pens: of each cell, line by line. None: not painted; "": the right half of the character
        before; else a character with what combines with it.
    x, y: the cursor, which may be beyond the last column or line.
    touched: the lines painted since the caller emptied it.
    wide: lines that have or had characters of two cells, or of several code points.
    """

    text: list[list[str | None]]
    pens: list[list[Pen]]
    touched: set[int]
    wide: set[int]

    def __init__(self, width: int, height: int) -> None:
        self.x = self.y = 0
        self._pen = PLAIN
        self._narrow: set[str] = set()
        """Characters known to take one cell."""
        self._rest = ""
        """An escape of which the end has not come."""
        self.begin(width, height)

    def begin(self, width: int, height: int) -> None:
        """Nothing is painted; the size is this."""
        self.width, self.height = width, height
        self.text = [[None] * width for _ in range(height)]
        self.pens = [[PLAIN] * width for _ in range(height)]
        self.touched, self.wide = set(), set()

    def feed(self, data: str) -> Iterator[str]:
        """Paints `data`; yields what in it is no painting, sequence by sequence, each once all
        before it is painted."""
        data = self._rest + data
        self._rest = ""
        # The last escape may be the one that ends a string, so it is sought from the one before.
        if cut := _CUT.search(data, max(0, data.rfind("\x1b", 0, -1))):
            data, self._rest = data[: cut.start()], cut[0]
        if not any(start in data for start in _STRINGS):
            yield from self._paint(data)
            return
        for number, part in enumerate(_STRING.split(data)):
            if number % 2 == 0:
                yield from self._paint(part)
            elif part.startswith("\x1b]8;"):
                link = part[4:-1].removesuffix("\x1b")
                self._pen = self._pen.linked(link if link != ";" else "")
            else:
                yield part

    def _paint(self, data: str) -> Iterator[str]:
        first, *pieces = data.split("\x1b")
        if first and not self._put(first):
            yield from self._put_any(first)
        for piece in pieces:
            if piece == "[0m":
                self._pen = self._pen.after("0") if self._pen.link else PLAIN
                continue
            codes, _, text = piece.partition("m")
            if pen := self._pen.known.get(codes):
                self._pen = pen
            else:
                found = _SEQUENCE.match(piece)
                escape = found[0] if found else piece[:1]
                text = piece[len(escape) :]
                if position := _POSITION.fullmatch(escape):
                    self.y, self.x = (max(int(n or 1), 1) - 1 for n in position.groups())
                elif _SGR.fullmatch(escape):
                    self._pen = self._pen.after(escape[1:-1])
                else:
                    yield f"\x1b{escape}"
            if text and not self._put(text):
                yield from self._put_any(text)

    def _put(self, text: str) -> bool:
        """Paints text of characters known to take one cell, or a line feed; False for other."""
        if text == "\n":  # the terminal's line discipline makes it go to the first column
            self.x, self.y = 0, self.y + 1
        elif self._narrow.issuperset(text):
            x, end = self.x, self.x + len(text)
            self.x = end
            if end > self.width:
                text, end = text[: max(self.width - x, 0)], self.width
            if text and self.y < self.height:
                self._set(x, end, text)
        else:
            return False
        return True

    def _set(self, x: int, end: int, cells: str | list[str]) -> None:
        row = self.text[self.y]
        if self.y in self.wide:  # a half of a character is a blank
            if row[x] == "":
                row[x - 1] = " "
            if end < self.width and row[end] == "":
                row[end] = " "
        pens = self.pens[self.y]
        if end - x == 1:  # as in a picture: half the time
            row[x], pens[x] = cells[0], self._pen
        else:
            row[x:end] = cells
            pens[x:end] = [self._pen] * (end - x)
        self.touched.add(self.y)

    def _put_any(self, text: str) -> Iterator[str]:
        """Paints text with controls, or with characters that are wide or not known yet."""
        for number, part in enumerate(_CONTROL.split(text)):
            if number % 2:
                if part in "\r\b":
                    self.x = 0 if part == "\r" else max(self.x - 1, 0)
                elif part != "\0" and not self._put(part):
                    yield part
                continue
            self._narrow.update(c for c in part if get_character_cell_size(c) == 1)
            if part and not self._put(part) and self.y < self.height:
                self.wide.add(self.y)
                for start, end, cells in split_graphemes(part)[0]:
                    self._put_grapheme(part[start:end], cells)

    def _put_grapheme(self, grapheme: str, cells: int) -> None:
        if cells == 0 and 0 < self.x <= self.width:  # it belongs to the one before
            row = self.text[self.y]
            lead = self.x - (2 if row[self.x - 1] == "" else 1)
            row[lead] = (row[lead] or " ") + grapheme
            self.touched.add(self.y)
        elif cells and self.x + cells <= self.width:
            self._set(self.x, self.x + cells, [grapheme, ""][:cells])
        self.x += cells
