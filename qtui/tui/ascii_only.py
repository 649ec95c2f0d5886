"""`--ascii`, for everything that reaches the terminal: our drawings and Textual's own parts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from qtui.screen.depth import Depth
from qtui.screen.widgets.drawing import Drawing
from qtui.tui.terminal import PRINTABLE, Colourless

_PAIRS = {
    "─━═╌┄┈╍▔▁": "-",
    "│┃║╎┆╏▏▕▎▍▌▋▊▉▐": "|",
    "┌┐└┘├┤┬┴┼╭╮╰╯╔╗╚╝┏┓┗┛▖▗▘▝▙▛▜▟": "+",
    "█▓▀▄▆▇▅": "#",
    "▒": "*",
    "░▂▃": ":",
    "…": "~",
    "·•": ".",
    "×": "x",
    "−–—": "-",
    "±": "+",
    "←": "<",
    "→▸▶›": ">",
    "↑▲": "^",
    "↓▼": "v",
    "“”": '"',
    "‘’": "'",
    "●▪‣⭑": "*",
    "◆": "@",  # as in drawing.ASCII: what a text calls ◆ must look as in the picture
    "○◦": "o",
}
# A key that is shown as a symbol gets a name: "<" and "^v" would be read as other keys.
_KEYS = {
    "⏎": "Enter",
    "⌫": "Backspace",
    "←": "Left",
    "→": "Right",
    "↑": "Up",
    "↓": "Down",
}
_TABLE = {ord(character): ascii for group, ascii in _PAIRS.items() for character in group}


@lru_cache(maxsize=4096)
def to_ascii(text: str) -> str:
    """`text` in the same number of ASCII cells; a character without a similar one becomes a
    question mark."""
    if text.isascii():
        return text
    known = text.translate(_TABLE)
    return "".join(c if c.isascii() else "?" * cell_len(c) for c in known)


def key_in_ascii(display: str) -> str:
    """The name of a key, or of several that are shown as one symbol each: "←→" is "Left/Right"."""
    if all(sign in _KEYS for sign in display):
        return "/".join(_KEYS[sign] for sign in display)
    return "".join(_KEYS.get(sign, sign) for sign in display)


class AsciiOnly(LineFilter):
    """Translates the text of every segment and keeps the styles."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]


def line_filters(drawing: Drawing, usual: Sequence[LineFilter]) -> Sequence[LineFilter]:
    """What every line passes on its way to the terminal; `usual` are Textual's own filters."""
    filters = [PRINTABLE, *usual]
    if drawing.depth is Depth.NONE:
        # Textual's own filter would send the code of a default colour.
        filters = [PRINTABLE, Colourless()]
    if drawing.ascii:
        filters.append(AsciiOnly())
    return filters
