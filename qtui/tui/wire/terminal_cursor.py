"""The cursor of a terminal and what it draws with: the shortest escapes to change either."""

from __future__ import annotations

from typing import Final

from qtui.tui.wire.pens import PLAIN, Pen

#: Lines and columns that are near, and numbers of one digit.
_NEAR: Final = 3
_ONE_DIGIT: Final = 10
#: A line or a column that nothing is near.
FAR: Final = 1 << 20


class TerminalCursor:
    """Where a terminal of `width` columns writes, and with which pen.

    at: line and column, from 0. None: not known. The column is None after the last one was written,
        where terminals differ.
    pen: None if it is not known.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.at: tuple[int, int | None] | None = None
        self.pen: Pen | None = None

    def wrote(self, y: int, stop: int) -> None:
        """Cells of line `y` up to column `stop` were written."""
        self.at = y, stop if stop < self.width else None

    def move(self, y: int, x: int) -> str:
        """To this line and column."""
        at, self.at = self.at, (y, x)
        if at == (y, x):
            return ""
        ways = [f"\x1b[{y + 1};{x + 1}H" if x else f"\x1b[{y + 1}H" if y else "\x1b[H"]
        if at is not None and y - at[0] in (0, 1):
            ways.append(("\r" if y == at[0] else "\r\n") + forward(x))
        if at is not None and at[0] == y and at[1] is not None:
            back = at[1] - x
            ways.append(forward(-back) if back < 0 else "\b" * back)
        return min(ways, key=len)

    def draw(self, pen: Pen) -> str:
        """From now on with this pen."""
        before, self.pen = self.pen, pen
        if before is pen:
            return ""
        return before.to(pen) if before is not None else "\x1b[m" + PLAIN.to(pen)

    def draw_blanks(self, pen: Pen, then: Pen | None) -> str:
        """From now on with a pen whose blanks look as those of `pen`, which is a plain one: the
        current one, that of what follows, or the current one with another background."""
        if self.pen is not None and self.pen.ground is pen.ground:
            return ""
        if then is not None and then.ground is pen.ground:
            return self.draw(then)
        return self.draw(pen.ground if self.pen is None else self.pen.over(pen.back))


def forward(cells: int) -> str:
    """The movement to the right in a line."""
    return "" if cells == 0 else "\x1b[C" if cells == 1 else f"\x1b[{cells}C"


def onward(down: int, right: int, y: int, x: int) -> str:
    """The movement to (y, x), from 0, that many lines further down and columns to the right; from
    FAR by any of these."""
    if 0 < down <= _NEAR and abs(right) < FAR // 2:
        below = "\x1b[B" if down == 1 else f"\x1b[{down}B"
        if -_NEAR <= right <= 0:
            return below + "\b" * -right
        if down == 1:
            return below + forward(right) if 0 < right < _ONE_DIGIT else f"\r\n{forward(x)}"
    return f"\x1b[{y + 1};{x + 1}H"
