"""The characters that pictures in a terminal are drawn with."""

from __future__ import annotations

from qtui_core.dataclass import dataclass


@dataclass(frozen=True)
class Glyphs:
    """The characters of a drawing; each is one cell wide."""

    shades: str  # empty to full, for magnitudes without colours
    negative: str  # shades of negative values; the first is zero
    positive: str
    eighths: str  # vertical bar of height 0..8 in one cell
    upper_half: str
    full: str
    tick: str
    marker: str  # points up at a position on the line above
    marker_down: str
    baseline: str
    vertical: str
    dot: str
    ellipsis: str
    minus: str
    times: str
    arrow: str
    outlier: str
    pointer: str  # marks the current row
    on: str
    off: str


UNICODE = Glyphs(
    shades=" ░▒▓█",
    negative="·-=≡",
    positive="·+‡#",
    eighths=" ▁▂▃▄▅▆▇█",
    upper_half="▀",
    full="█",
    tick="│",
    marker="▲",
    marker_down="▼",
    baseline="─",
    vertical="│",
    dot="·",
    ellipsis="…",
    minus="−",
    times="×",
    arrow="→",
    outlier="◆",
    pointer="▸",
    on="●",
    off="○",
)

ASCII = Glyphs(
    shades=" .:*#",
    negative=".-=%",
    positive=".+*#",
    eighths=" ..::||##",
    upper_half="#",
    full="#",
    tick="|",
    marker="^",
    marker_down="v",
    baseline="-",
    vertical="|",
    dot=".",
    ellipsis="~",
    minus="-",
    times="x",
    arrow=">",
    outlier="@",
    pointer=">",
    on="*",
    off="o",
)


@dataclass(frozen=True)
class Brush:
    """What a terminal can draw. `shaded`: characters show magnitudes, as colours cannot."""

    ascii: bool = False
    shaded: bool = True

    @property
    def glyphs(self) -> Glyphs:
        return ASCII if self.ascii else UNICODE

    def shade(self, share: float) -> str:
        """The character of a magnitude, 0 to 1; a blank only for zero."""
        shades = self.glyphs.shades
        if share <= 0:
            return shades[0]
        return shades[min(len(shades) - 1, 1 + int(share * (len(shades) - 1)))]
