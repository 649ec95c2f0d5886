"""Nothing is drawn in the colour of its background, in any theme, at any depth, on any terminal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rich.color import Color, ColorType
from rich.style import Style
from screens import Running, settled
from textual.app import App

from qtui.engine.answers.tensors import TensorEntry
from qtui.screen.depth import Depth
from qtui.screen.tensors.list import TensorList
from qtui.screen.widgets.heatmap.ramps import EIGHT_BIT_CUBE
from qtui.tui.config import Settings

Triplet = tuple[int, int, int]
#: xterm's sixteen colours, the paler of the usual ones on white.
SIXTEEN: tuple[Triplet, ...] = (
    (0, 0, 0), (205, 0, 0), (0, 205, 0), (205, 205, 0), (0, 0, 238), (205, 0, 205), (0, 205, 205),
    (229, 229, 229), (127, 127, 127), (255, 0, 0), (0, 255, 0), (255, 255, 0), (92, 92, 255),
    (255, 0, 255), (0, 255, 255), (255, 255, 255),
)  # fmt: skip
WHITE, BLACK = (255, 255, 255), (0, 0, 0)


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


def seen(color: Color | None, default: Triplet) -> Triplet:
    if color is None or color.type is ColorType.DEFAULT:
        return default
    if color.type is ColorType.TRUECOLOR:
        return tuple(color.get_truecolor())  # type: ignore[return-value]
    assert color.number is not None
    return SIXTEEN[color.number] if color.number < 16 else tuple(EIGHT_BIT_CUBE[color.number])


def colours(style: Style, ink: Triplet, ground: Triplet) -> tuple[Triplet, Triplet]:
    """What a terminal with these defaults draws: of the text, and behind it."""
    pair = seen(style.color, ink), seen(style.bgcolor, ground)
    return pair[::-1] if style.reverse else pair


def pale(app: App[None], light: bool, least: float) -> Iterator[str]:
    """Texts of the screen that stand out less than `least`."""
    ink, ground = (BLACK, WHITE) if light else (WHITE, BLACK)
    for strip in app.screen._compositor.render_strips():
        for text, style, _ in strip:
            if text.strip() and style is not None:
                found = contrast(*colours(style, ink, ground))
                if found < least:
                    yield f"{found:.1f} {text.strip()[:30]!r} {style}"


def entries() -> list[TensorEntry]:
    return [
        TensorEntry(f"layers.{at}.weight", "F32" if at != 2 else "F4", (8, 8), 64, 256, at != 2,
                    True, 8)
        for at in range(4)
    ]  # fmt: skip


#: Theme and whether the terminal is light, where it says the colours itself.
WORN = (("qtui-dark", False), ("qtui-dark", True), ("qtui-light", True), ("qtui-contrast", False),
        ("qtui-contrast", True))  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("depth", [Depth.TRUECOLOR, Depth.C256, Depth.C16])
async def test_every_text_stands_out_from_its_ground(running: Running, depth: Depth) -> None:
    wrong = set()
    async with running(color=depth.value, config=Settings(theme="qtui-dark")) as pilot:
        tensors = TensorList(pilot.app.drawing)
        tensors.styles.height = 5
        await pilot.app.panel.mount(tensors)
        tensors.load(entries())
        tensors.set_filter("layers")
        tensors.focus()
        for theme, light in WORN:
            pilot.app.theme = theme
            pilot.app.tell("told", "warning")
            await settled(pilot)
            least = 1.6 if light and theme == "qtui-dark" else 1.9
            wrong |= {f"{theme} {light} {each}" for each in pale(pilot.app, light, least)}
            await pilot.press("question_mark")
            await settled(pilot)
            # What is behind the help is meant to be pale.
            wrong |= {f"help {theme} {light} {each}" for each in pale(pilot.app, light, 1.2)}
            await pilot.press("escape")
    assert wrong == set()
