"""Draws the first minute with qtui as one animated SVG, from the app itself.

    python screenshots/tour.py [--size 110x32]

Every frame is the real app with the real engine on the demo model, exported as SVG by Textual. The
frames follow each other by a CSS animation, without a script.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from pathlib import Path

from make import FOLDER, run_steps, settle

from qtui.tui.app import QtuiApp

#: What is pressed, what the viewer reads below the picture, and how many seconds the frame stays.
FRAMES: tuple[tuple[tuple[str, ...], str, float], ...] = (
    ((), "qtui: what every number format makes of 0.1", 4),
    (("down", "down"), "down: another format, its neighbours on the number line", 3),
    (("2",), "2: a tensor of the model, quantized, and its error", 5),
    (("w",), "w: the worst tensor", 4),
    (("v",), "v: its outliers, and the columns that pay for them", 5),
    (("3",), "3: INT4 or NF4, and where the codes of each lie", 4),
    (("4",), "4: what a QLoRA step needs, byte by byte, before it runs", 5),
    (("down", "right"), "right: a longer sequence; the estimate follows", 4),
    (("5", "down", *["left"] * 4, "r", "STEPS"), "5, r: the step for real, over its estimate", 6),
    (("6",), "6: what low precision does to learning", 4),
)  # fmt: skip
_CAPTION = 34


async def frames(width: int, height: int) -> list[str]:
    """The SVG of each frame."""
    app = QtuiApp("demo", color="truecolor")
    drawn = []
    async with app.run_test(size=(width, height)) as pilot:
        await settle(app, pilot)
        for keys, _, _ in FRAMES:
            for key in keys:
                await (run_steps(app, pilot) if key == "STEPS" else pilot.press(key))
                if key in "123456":
                    await settle(app, pilot)
            if "STEPS" not in keys:
                await settle(app, pilot)
            drawn.append(app.export_screenshot(title="qtui"))
    return drawn


def animated(drawn: list[str]) -> str:
    """One SVG that shows each frame for its time, again and again."""
    width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn[0]).groups())
    total = sum(seconds for _, _, seconds in FRAMES)
    style, parts, begun = [], [], 0.0
    for number, (svg, (_, caption, seconds)) in enumerate(zip(drawn, FRAMES, strict=True)):
        first, last = 100 * begun / total, 100 * (begun + seconds) / total
        shown = f"{first:.3f}%{{visibility:visible}}{last:.3f}%{{visibility:hidden}}"
        start = "0%{visibility:hidden}" if number else ""
        style.append(
            f"@keyframes k{number}{{{start}{shown}100%{{visibility:hidden}}}}"
            f".k{number}{{animation:k{number} {total:g}s step-end infinite;visibility:hidden}}"
        )
        svg = svg.replace("<svg ", f'<svg width="{width:g}" height="{height:g}" ', 1)
        says = f'<text x="16" y="{height + 22:g}" class="says">{caption}</text>'
        parts.append(f'<g class="k{number}">{svg}{says}</g>')
        begun += seconds
    style.append(".says{font:18px monospace;fill:#808080}")
    box = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height + _CAPTION:g}"'
    return f"<svg {box}><style>{''.join(style)}</style>{''.join(parts)}</svg>\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="110x32")
    parser.add_argument("--output", type=Path, default=FOLDER / "tour.svg")
    options = parser.parse_args()
    width, height = map(int, options.size.split("x"))
    options.output.write_text(animated(asyncio.run(frames(width, height))), encoding="utf-8")
    print(options.output)


if __name__ == "__main__":
    main()
