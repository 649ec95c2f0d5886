"""The screen that a terminal shows, and the fewest bytes from it to the next.

`LastScreen.feed` takes what a program would write to the terminal, escapes and all. It keeps the
cells that this would paint, and returns only what paints nothing and goes on as it is: modes,
queries, the clipboard, the bell. `LastScreen.difference` returns what makes the terminal show these
cells: those that differ from the ones sent last, with no attribute that already holds, between the
shortest movements of the cursor. What was painted over in between is never sent.

It reads what full-screen programs such as Textual's write (`PaintedScreen`). After anything else
that may change cells (an erasure, a scroll, another screen) it knows nothing of the screen until
that is painted again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from qtui.tui.wire.painted_screen import PaintedScreen
from qtui.tui.wire.pens import PLAIN, Pen
from qtui.tui.wire.terminal_cursor import FAR, TerminalCursor, forward, onward

#: Between these a terminal collects what it gets and then shows it at once (synchronized output).
BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"
# What changes no cell and does not move the cursor: the bell, strings for the operating system,
# queries, the keyboard's modes, the shape of the cursor, private modes but for those that clear,
# scroll or change the screen.
_HARMLESS: Final = re.compile(
    r"\a|\x1b(?:\].*|\[(?:[<=>][0-?]*[a-zA-Z]|\??[0-9;]*(?:[cn]|\$p| q)"
    r"|\?(?!(?:3|6|47|69|104[789])[hl])[0-9]+[hl]))",
    re.DOTALL,
)
#: Unchanged cells that may be written again where that is no longer than a movement past them.
_BRIDGE: Final = 5
#: Blanks that are written as such: erasing as many takes no fewer bytes.
_FEW_BLANKS: Final = 4
#: Characters and escapes for each changed cell above which a line is a picture of many colours, and
#: those of all such lines up to which these are sent in their order.
_COLORFUL: Final = 12
_LITTLE: Final = 4000
#: The half block that shows with exchanged colours what the other shows: of two colours there is
#: then one pen, whichever is above.
_HALVES: Final = {"▀": "▄", "▄": "▀"}


class LastScreen:
    """What a terminal of `width` by `height` cells shows, and what it should show.

    erases: whether the terminal erases cells, and with the current background (terminfo: ech, bce).

    It never asks for a character to be repeated (REP), whatever terminfo says: mosh and tmux, which
    go by the terminfo of others, do that wrong (mobile-shell/mosh#1064, tmux/tmux#3687).
    """

    def __init__(self, width: int = 0, height: int = 0, *, erases: bool = False) -> None:
        self.erases = erases
        self.synchronized = False
        """Whether the program uses synchronized output."""
        self._painted = PaintedScreen(width, height)
        self._begin_anew()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        return self._painted.width, self._painted.height

    def resize(self, width: int, height: int) -> None:
        """The terminal has this many columns and lines from now on; the program paints it anew."""
        self._painted.begin(width, height)
        self._begin_anew()

    def forget(self) -> None:
        """What the terminal shows is not known: the next difference is the whole screen. May be
        called at any time, also by the handler of a signal."""
        self._forgotten = True

    def _begin_anew(self) -> None:
        width, height = self.size
        self._forgotten = False
        self._sent: list[list[str | None]] = [[None] * width for _ in range(height)]
        self._sent_pens = [[PLAIN] * width for _ in range(height)]
        self._cursor = TerminalCursor(width)
        self._painted.touched.update(range(height))

    def feed(self, data: str) -> str:
        """Keeps what `data` paints; returns what is to be written now."""
        now: list[str] = []
        for control in self._painted.feed(data):
            if control in (BEGIN, END):
                self.synchronized = True
            elif _HARMLESS.fullmatch(control):
                now.append(control)
            else:
                now += self.difference(), "\x1b[m" * (self._cursor.pen is not PLAIN), control
                self.resize(*self.size)
        return "".join(now)

    def difference(self) -> str:
        """What makes the terminal show what was painted; "" if it does."""
        if self._forgotten:
            self._begin_anew()
        out: list[str] = []
        pictures: list[tuple[int, list[int], str]] = []
        for y in sorted(self._painted.touched):
            if changed := self._changed(y):
                cursor = self._cursor.at, self._cursor.pen
                line = self._line(y, changed)
                if len(line) > _COLORFUL * len(changed) and y not in self._painted.wide:
                    pictures.append((y, changed, line))
                    self._cursor.at, self._cursor.pen = cursor
                else:
                    out.append(line)
        self._painted.touched.clear()
        if pictures:
            out.append(self._pictures(pictures))
        width, height = self.size
        # After the program left its screen the cursor is somebody else's until it paints again.
        if height and (out or self._cursor.at):
            y, x = min(self._painted.y, height - 1), min(self._painted.x, width - 1)
            out.append(self._cursor.move(y, x))
        sent = "".join(out)
        return f"{BEGIN}{sent}{END}" if sent and self.synchronized else sent

    def _changed(self, y: int) -> list[int]:
        """The columns of a line that the terminal must be sent, which it then has."""
        text, pens = self._painted.text[y], self._painted.pens[y]
        sent, sent_pens = self._sent[y], self._sent_pens[y]
        if text == sent and pens == sent_pens:
            return []
        changed = [
            x
            for x, (new, old, pen, was) in enumerate(zip(text, sent, pens, sent_pens, strict=True))
            if (new != old or (pen is not was and (new != " " or pen.ground is not was.ground)))
            and new is not None
        ]
        if changed and y in self._painted.wide:
            changed = self._with_halves(y, changed)
        self._sent[y], self._sent_pens[y] = text.copy(), pens.copy()
        return changed

    def _with_halves(self, y: int, changed: list[int]) -> list[int]:
        """With a half of a wide character that is or was there, the other half."""
        found, more = set(changed), list(changed)
        while more:
            x = more.pop()
            for row in (self._painted.text[y], self._sent[y]):
                other = x - 1 if row[x] == "" else x + 1
                joined = row[x] == "" or (other < self._painted.width and row[other] == "")
                if joined and other not in found and self._painted.text[y][other] is not None:
                    found.add(other)
                    more.append(other)
        return sorted(found)

    def _line(self, y: int, changed: list[int]) -> str:
        """Sends these columns from left to right."""
        out: list[str] = []
        pens, cursor = self._painted.pens[y], self._cursor
        erased = self._erased_from(y, changed)
        end = -1
        for start, stop in _runs(x for x in changed if x < erased):
            if not self._bridges(y, end, start):
                end = start
                out.append(cursor.move(y, start))
            self._write(y, end, stop, out)
            end = stop
        if erased < self._painted.width:
            if not self._bridges(y, end, erased):
                end = erased
                out.append(cursor.move(y, erased))
            self._write(y, end, erased, out)
            out.append(cursor.draw_blanks(pens[erased], None) + "\x1b[K")
        return "".join(out)

    def _pictures(self, lines: list[tuple[int, list[int], str]]) -> str:
        """Sends lines of many colours: pen by pen if that is shorter, as a movement of the cursor
        takes fewer bytes than two colours do, else from left to right."""
        in_order = sum(len(line) for _, _, line in lines)
        before = self._cursor.at, self._cursor.pen
        if in_order > _LITTLE:
            sent = self._pen_by_pen(lines)
            if len(sent) < in_order:
                return sent
            self._cursor.at, self._cursor.pen = before
        return "".join(self._line(y, changed) for y, changed, _ in lines)

    def _pen_by_pen(self, lines: list[tuple[int, list[int], str]]) -> str:
        cells: dict[Pen, list[tuple[int, int, str]]] = {}
        for y, changed, _ in lines:
            text, pens = self._painted.text[y], self._painted.pens[y]
            for x in changed:
                cell, pen = text[x] or "", pens[x]
                if cell == " ":
                    pen = pen.ground
                elif cell in _HALVES and pen.turned is not None:
                    cell, pen = _HALVES[cell], pen.turned
                cells.setdefault(pen, []).append((y, x, cell))
        out: list[str] = []
        width = self.size[0]
        for pen in sorted(cells, key=lambda one: (one.back, one.fore)):
            blank = pen is pen.ground and pen.plain
            out.append(self._cursor.draw_blanks(pen, None) if blank else self._cursor.draw(pen))
            line, column = FAR, FAR
            for y, x, cell in cells[pen]:
                if y != line:
                    out.append(onward(y - line, x - column, y, x))
                elif x != column:
                    out.append(forward(x - column))
                out.append(cell)
                # Where a terminal is after its last column differs: nothing is near that.
                line, column = y, x + 1 if x + 1 < width else FAR
            self._cursor.wrote(y, x + 1)
        return "".join(out)

    def _erased_from(self, y: int, changed: list[int]) -> int:
        """The first changed cell from which the line is blank, so that it is erased to its end; the
        width where it is not worth that."""
        text, pens, x = self._painted.text[y], self._painted.pens[y], self._painted.width
        ground = pens[-1].ground
        if not ground.plain or (ground.back and not self.erases):
            return self._painted.width
        while x and text[x - 1] == " " and pens[x - 1].ground is ground:
            x -= 1
        first = next((one for one in changed if one >= x), self._painted.width)
        return first if changed[-1] - first >= _FEW_BLANKS else self._painted.width

    def _bridges(self, y: int, start: int, stop: int) -> bool:
        """Whether to write the cells between, which need not change, is the shortest way."""
        pen = self._cursor.pen
        if start < 0 or stop - start > _BRIDGE or self._cursor.at != (y, start) or pen is None:
            return False
        size = 0
        for cell, its in zip(
            self._painted.text[y][start:stop], self._painted.pens[y][start:stop], strict=True
        ):
            if cell is None or not (its is pen or (cell == " " and its.ground is pen.ground)):
                return False
            size += len(cell.encode())
        return size <= len(forward(stop - start))

    def _write(self, y: int, x: int, end: int, out: list[str]) -> None:
        """Writes the cells from column `x`, where the cursor is, to `end`."""
        text, pens = self._painted.text[y], self._painted.pens[y]
        while x < end:
            pen, stop = pens[x], x + 1
            if text[x] == " " and pen.plain:
                ground = pen.ground
                while stop < end and text[stop] == " " and pens[stop].ground is ground:
                    stop += 1
                out.append(self._cursor.draw_blanks(pen, pens[stop] if stop < end else None))
                out.append(self._blanks(y, x, stop, end))
            else:
                while stop < end and pens[stop] is pen and text[stop] != " ":
                    stop += 1
                out.append(self._cursor.draw(pen))
                if y in self._painted.wide:
                    out.append(self._letters(y, x, stop))
                else:
                    out += text[x:stop]  # type: ignore[arg-type]
                    self._cursor.wrote(y, stop)
            x = stop

    def _blanks(self, y: int, x: int, stop: int, end: int) -> str:
        count = stop - x
        erase = f"\x1b[{count}X"
        if self.erases and len(erase) + len(forward(count)) < count:
            self._cursor.at = y, x
            return erase + (self._cursor.move(y, stop) if stop < end else "")
        self._cursor.wrote(y, stop)
        return " " * count

    def _letters(self, y: int, x: int, stop: int) -> str:
        """Characters of which some may be wide, or of several code points."""
        cells, width = self._painted.text[y][x:stop], self._painted.width
        out = []
        for number, cell in enumerate(cells, x + 1):
            out.append(cell or "")
            if cell and len(cell) > 1:  # terminals differ in how wide it is
                after = number + (number < width and self._painted.text[y][number] == "")
                self._cursor.at = None
                out.append(self._cursor.move(y, min(after, width - 1)))
        self._cursor.wrote(y, stop)
        return "".join(out)


def _runs(columns: Iterator[int]) -> Iterator[tuple[int, int]]:
    """First and one past the last of each run of columns that follow each other."""
    start = stop = -1
    for x in columns:
        if x != stop:
            if stop > 0:
                yield start, stop
            start = x
        stop = x + 1
    if stop > 0:
        yield start, stop
