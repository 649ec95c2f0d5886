"""Every text stands out from what is behind it by 4.5:1 and every line by 3:1, in our themes, at
each depth, with the palettes that terminals have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import train_runs
from rich.color import Color as RichColor
from rich.color import ColorSystem, ColorType
from rich.color_triplet import ColorTriplet
from rich.style import Style
from screens import Running, idle, settled
from textual.app import App
from textual.color import Color, ColorParseError
from textual.pilot import Pilot

from qtui.engine.answers.tensors import TensorEntry
from qtui.screen.curve.legend import PARTS, letter
from qtui.screen.depth import Depth
from qtui.screen.tensors.list import TensorList
from qtui.screen.widgets.heatmap.ramps import EIGHT_BIT_CUBE
from qtui.tui.config import Settings
from qtui.tui.panels import PANELS

Triplet = tuple[int, ...]
#: The least contrast of WCAG 2.2: of text (1.4.3), of lines and pictures (1.4.11).
TEXT, LINE = 4.5, 3.0


def palette(text: str) -> tuple[Triplet, ...]:
    return tuple(tuple(bytes.fromhex(one)) for one in text.split())


#: The sixteen colours of terminals, and of each what it writes on what where it is told nothing.
PALETTES: dict[str, tuple[tuple[Triplet, ...], tuple[str, ...]]] = {
    "xterm": (palette(
        "000000 cd0000 00cd00 cdcd00 0000ee cd00cd 00cdcd e5e5e5 "
        "7f7f7f ff0000 00ff00 ffff00 5c5cff ff00ff 00ffff ffffff"),
        ("000000 ffffff", "ffffff 000000", "e5e5e5 000000")),
    "VGA": (palette(
        "000000 aa0000 00aa00 aa5500 0000aa aa00aa 00aaaa aaaaaa "
        "555555 ff5555 55ff55 ffff55 5555ff ff55ff 55ffff ffffff"),
        ("aaaaaa 000000",)),
    "Campbell": (palette(
        "0c0c0c c50f1f 13a10e c19c00 0037da 881798 3a96dd cccccc "
        "767676 e74856 16c60c f9f1a5 3b78ff b4009e 61d6d6 f2f2f2"),
        ("cccccc 0c0c0c",)),
    "Solarized": (palette(
        "073642 dc322f 859900 b58900 268bd2 d33682 2aa198 eee8d5 "
        "002b36 cb4b16 586e75 657b83 839496 6c71c4 93a1a1 fdf6e3"),
        ("839496 002b36", "657b83 fdf6e3")),
    "Tango": (palette(
        "2e3436 cc0000 4e9a06 c4a000 3465a4 75507b 06989a d3d7cf "
        "555753 ef2929 8ae234 fce94f 729fcf ad7fa8 34e2e2 eeeeec"),
        ("d3d7cf 2e3436", "2e3436 eeeeec")),
    "GNOME": (palette(
        "171421 c01c28 26a269 a2734c 12488b a347ba 2aa1b3 d0cfcc "
        "5e5c64 f66151 33da7a e9ad0c 2a7bde c061cb 33c7de ffffff"),
        ("d0cfcc 171421", "171421 ffffff")),
}  # fmt: skip
_SYSTEMS = {Depth.C256: ColorSystem.EIGHT_BIT, Depth.C16: ColorSystem.STANDARD}


def luminance(triplet: Triplet) -> float:
    """Relative luminance of WCAG 2."""
    parts = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (value / 255 for value in triplet)
    ]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: Triplet, other: Triplet) -> float:
    """Contrast ratio of WCAG 2: 1 for equal colours, 21 for black on white."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def least_contrast(style: Style, light: bool | None, depth: Depth, least: float) -> float:
    """How far the letters of a style stand out with the worst palette, as a share of what they
    should; less is asked where the terminal's own text stands out less. `light`: only terminals of
    that kind; None for all."""
    worst = 99.0
    for sixteen, grounds in PALETTES.values():
        for pair in grounds:
            ink, ground = palette(pair)
            if light is not None and light != (luminance(ground) > 0.5):
                continue
            seen = [
                default if color is None else shown(color, default, sixteen, depth)
                for color, default in ((style.color, ink), (style.bgcolor, ground))
            ]
            wanted = min(least, contrast(ink, ground)) if depth is Depth.C16 else least
            worst = min(worst, contrast(seen[0], seen[1]) / wanted)
        if depth is not Depth.C16:
            break  # nothing is the terminal's own
    return worst


def shown(
    color: RichColor, default: Triplet, sixteen: tuple[Triplet, ...], depth: Depth
) -> Triplet:
    if depth in _SYSTEMS:
        color = color.downgrade(_SYSTEMS[depth])
    if color.type is ColorType.DEFAULT:
        return default
    if color.number is None:
        return tuple(color.get_truecolor())
    return sixteen[color.number] if color.number < 16 else tuple(EIGHT_BIT_CUBE[color.number])


def is_line(text: str) -> bool:
    """Whether it is drawn and not written: frames, curves, bars, marks, leaders of dots."""
    return all("\u2500" <= c <= "\u28ff" or c in "\u00b7 " for c in text)


def is_block(text: str) -> bool:
    return all("\u2580" <= c <= "\u259f" or c == " " for c in text)


def own_colors(app: App[None]) -> set[str]:
    """Those that the theme names, as rich has them."""
    found = set()
    for value in app.get_css_variables().values():
        with suppress(ColorParseError):
            found.add(Color.parse(value).rich_color.name)
    return found


def pale(app: App[None], light: bool | None) -> Iterator[str]:
    """What of the screen stands out too little. Blocks in other colours than the theme's are
    pictures: an area of a curve, two values in a cell, whose colours are their content."""
    depth = app.drawing.depth
    own = own_colors(app)
    for strip in app.screen._compositor.render_strips():
        for text, style, _ in strip:
            if not text.strip() or style is None:
                continue
            names = [c.name for c in (style.color, style.bgcolor) if c is not None]
            if is_block(text) and not own.issuperset(names):
                continue
            least = LINE if is_line(text) else TEXT
            share = least_contrast(style, light, depth, least)
            if share < 1:
                yield f"{share * least:.1f} of {least} {text.strip()[:30]!r} {' on '.join(names)}"


def entries() -> list[TensorEntry]:
    return [
        TensorEntry(f"layers.{at}.weight", "F32" if at != 2 else "F4", (8, 8), 64, 256, at != 2,
                    True, 8)
        for at in range(4)
    ]  # fmt: skip


#: Our themes, and the kind of terminal on which each is worn; high contrast is on both.
WORN = (("qtui-dark", False), ("qtui-light", True), ("qtui-contrast", None))


async def pale_in_themes(
    pilot: Pilot[None], where: str, wrong: set[str], worn: Sequence[tuple[str, bool | None]] = WORN
) -> None:
    for theme, light in worn:
        pilot.app.theme = theme
        await settled(pilot)
        wrong |= {f"{where} {theme}: {each}" for each in pale(pilot.app, light)}


@pytest.mark.parametrize("ground", [(18, 18, 18), (255, 255, 255)])
def test_the_letter_of_every_muted_part_stands_out_in_256_colours(ground: Triplet) -> None:
    for place in range(len(PARTS)):
        style = letter(place, Depth.C256, ColorTriplet(*ground))
        assert least_contrast(style, None, Depth.C256, TEXT) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("depth", [Depth.TRUECOLOR, Depth.C256, Depth.C16])
async def test_every_text_and_line_stands_out_from_its_ground(
    running: Running, tmp_path: Path, depth: Depth
) -> None:
    """Every panel and view, a filtered list and a toast."""
    path = train_runs.write(tmp_path / "run.jsonl", train_runs.whole())
    wrong: set[str] = set()
    turns = itertools.count()
    config = Settings(theme="qtui-dark")
    async with running(color=depth.value, config=config, recording=path) as pilot:
        for entry in PANELS:
            await pilot.app.action_show_panel(entry.id)
            await idle(pilot)
            panel = pilot.app.panel
            views = getattr(panel, "views", (None,))
            for place, view in enumerate(views[:2] if depth is Depth.C256 else views):
                if view is not None:
                    panel.show_view(view)
                    await idle(pilot)
                # Most views in one theme: colours of all come from the same palettes.
                turn = next(turns)
                every = depth is Depth.TRUECOLOR and not place
                worn = WORN if every else [WORN[turn % len(WORN)]]
                await pale_in_themes(pilot, f"{entry.id} {view and view.TITLE}", wrong, worn)
        await pilot.app.action_show_panel("formats")
        tensors = TensorList(pilot.app.drawing)
        tensors.styles.height = 5
        await pilot.app.panel.mount(tensors)
        tensors.load(entries())
        tensors.set_filter("layers")
        tensors.focus()
        pilot.app.tell("told", "warning")
        await pale_in_themes(pilot, "a list", wrong)
    assert wrong == set()
