"""Draws the pictures of the README from the app itself.

    python screenshots/make.py [--sizes 80x24,120x40] [--chromium PATH]

Each picture is the real app with the real engine on the demo model, exported as SVG by
Textual and rendered to PNG by a headless Chromium with the Fira Code font.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from qtui.tui.app import QtuiApp

FOLDER = Path(__file__).parent
#: Picture -> its panel, and the keys that lead from there to what it shows. WAIT waits for the
#: answer, OVER for the end of a recording, END for the end of an experiment.
PICTURES: dict[str, tuple[str, tuple[str, ...]]] = {
    "formats": ("formats", ()),
    "quantize": ("quantize", ()),
    "maps": ("quantize", ("b",)),
    "outliers": ("quantize", ("v", "i", *"40 at column 17", "enter")),
    "activations": ("quantize", ("v", "v", "r")),
    "model": ("quantize", ("V", "r")),
    "codebooks": ("codebooks", ()),
    # Llama 70B with QLoRA on an L40S, after the sequence grew.
    "memory": (
        "memory",
        (
            "V",
            *["down"] * 4,
            "enter",
            "WAIT",
            *["up"] * 4,
            "enter",
            *"l40s",
            "enter",
            "WAIT",
            *["down"] * 5,
            "right",
        ),
    ),
    "cases": ("memory", ("V", "down")),
    # A recording of three QLoRA steps of an 8 B model on an H200, at its end.
    "train": ("train", ("OVER",)),
    # The three products of a layer in fifteen schemes.
    "numerics": ("numerics", (*["down"] * 2, "r", "END")),
}
#: The recording that a picture plays.
RECORDINGS: dict[str, Path] = {
    "train": FOLDER.parent
    / "tests"
    / "gpu"
    / "measured"
    / "recordings"
    / "llama-3.1-8b-qlora.jsonl"
}
#: Drawing waits for the engine; a machine this slow has other problems.
PATIENCE_SECONDS = 60.0
RUN_SECONDS = 300.0


async def draw(picture: str, width: int, height: int) -> str:
    """The SVG of a picture at a size, once the engine has answered."""
    panel, keys = PICTURES[picture]
    recording = RECORDINGS.get(picture)
    app = QtuiApp("demo", color="truecolor", start_panel=panel, recording=recording)
    async with app.run_test(size=(width, height)) as pilot:
        await pilot.pause()
        await settle(app, pilot)
        for key in keys:
            if key == "WAIT":
                await settle(app, pilot)
                continue
            if key == "OVER":
                await play(app, pilot)
                continue
            if key == "END":
                await run_to_end(app, pilot)
                continue
            await pilot.press("space" if key == " " else key)
        if "OVER" not in keys:
            await settle(app, pilot)
        return app.export_screenshot(title=f"qtui — {picture}")


async def settle(app: QtuiApp, pilot) -> None:
    """Waits until the panel has its sentence and its process has had nothing to do for a while."""
    quiet = 0
    for _ in range(int(PATIENCE_SECONDS / 0.1)):
        await pilot.pause(0.1)
        asked = getattr(app.panel, "engine", app.engine)
        working = asked.busy or app.panel is None or not app.panel.sentence
        quiet = 0 if working else quiet + 1
        if quiet >= 10:
            return
    raise TimeoutError("the engine did not come to rest")


async def run_steps(app: QtuiApp, pilot) -> None:
    """Waits until a run is well in the backward pass of its third step."""
    for _ in range(int(RUN_SECONDS / 0.05)):
        await pilot.pause(0.05)
        state = app.panel.run_shown.state
        if state.over:
            break
        backward = state.step == 3 and state.phase == "backward"
        if backward and state.seconds - state.spans[-1].begun > 0.5 * backward_seconds(state):
            await pilot.pause(0.6)  # for the next picture
            return
    raise TimeoutError("no third step was seen")


async def play(app: QtuiApp, pilot) -> None:
    """Waits until a recording is over."""
    for _ in range(int(RUN_SECONDS / 0.1)):
        await pilot.pause(0.1)
        if app.panel.run_shown.state.over:
            await pilot.pause(1)  # for the last picture
            return
    raise TimeoutError("the recording did not end")


async def run_to_end(app: QtuiApp, pilot) -> None:
    """Waits until an experiment is over."""
    for _ in range(int(RUN_SECONDS / 0.1)):
        await pilot.pause(0.1)
        run = app.panel.shown.run
        if run is not None and run.over:
            await pilot.pause(1)  # for the last picture
            return
    raise TimeoutError("the experiment did not end")


def backward_seconds(state) -> float:
    """How long the backward pass of the last step took."""
    took = [s.ended - s.begun for s in state.spans if s.phase == "backward" and s.ended is not None]
    return took[-1] if took else 0.0


def to_png(svg: str, target: Path, chromium: str) -> None:
    """Renders a little larger than life, so that text is sharp on a dense screen."""
    width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups())
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(f'<body style="margin:0">{svg}</body>')
        subprocess.run(
            [
                chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                "--disable-background-networking", "--default-background-color=00000000",
                f"--user-data-dir={folder}/profile", "--force-device-scale-factor=1.25",
                f"--window-size={round(width)},{round(height)}", f"--screenshot={target}",
                page.as_uri(),
            ],
            check=True,
            capture_output=True,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="120x40")
    parser.add_argument("--pictures", default=",".join(PICTURES))
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    parser.add_argument("--output", type=Path, default=FOLDER)
    options = parser.parse_args()
    if options.chromium is None:
        parser.error("no chromium on the PATH; give --chromium PATH")
    for size in options.sizes.split(","):
        width, height = map(int, size.split("x"))
        for picture in options.pictures.split(","):
            target = options.output / f"{picture}-{size}.png"
            to_png(asyncio.run(draw(picture, width, height)), target, options.chromium)
            print(target)


if __name__ == "__main__":
    main()
