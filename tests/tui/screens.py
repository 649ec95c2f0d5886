"""What a test of the terminal app looks at, compares and waits for.

Goldens are the screen as plain text, one file a screen in golden/. `UPDATE_GOLDEN=1 pytest
tests/tui` writes them anew; read the diff before it is committed.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

from textual.app import App
from textual.pilot import Pilot

GOLDEN = Path(__file__).parent / "golden"

#: Seconds after which something that should have happened counts as missing: far more than anything
#: takes.
PATIENCE = 120.0
#: Seconds between two checks for something that takes long.
LONGEST_PAUSE = 0.1
#: Rounds of the event loop after which every chain of messages has ended.
ROUNDS = 100

Running = Callable[..., AbstractAsyncContextManager[Pilot[None]]]


def screen_lines(app: App[Any]) -> list[str]:
    """The cells of the screen as text. The one place that asks Textual's compositor."""
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip) for strip in strips]


def screen_text(app: App[Any]) -> str:
    """The screen without trailing blanks, ending in a newline."""
    return "\n".join(line.rstrip() for line in screen_lines(app)).rstrip() + "\n"


def check_golden(name: str, text: str) -> None:
    """Compares with golden/NAME.txt, or writes it where UPDATE_GOLDEN is set."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"no golden {path.name}: run with UPDATE_GOLDEN=1"
    assert text == path.read_text(encoding="utf-8")


@contextmanager
def goldens() -> Iterator[Callable[[str, str], None]]:
    """`check_golden` for many screens of one app: what differs is told of all, at the end."""
    wrong = []

    def check(name: str, text: str) -> None:
        try:
            check_golden(name, text)
        except AssertionError as error:
            wrong.append(f"{name}: {error}")

    yield check
    assert not wrong, "\n\n".join(wrong)


async def resized(pilot: Pilot[Any], size: tuple[int, int]) -> None:
    """The terminal of another size, once all is drawn in it."""
    await pilot.resize_terminal(*size)
    await idle(pilot)


async def drained(*_: float) -> None:
    """Lets everything finish that does not wait for a clock or for another process. Handling a
    message may post another one; each takes one round of the loop, or two."""
    for _round in range(ROUNDS):
        await asyncio.sleep(0)


async def until(pilot: Pilot[Any], holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Waits until something is true, and fails if it does not become true. It checks less and less
    often, so that a starting child gets the processor."""
    end, pause = time.monotonic() + seconds, 0.01
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(pause)
        pause = min(1.2 * pause, LONGEST_PAUSE)
        await drained()
        pilot.app.screen._on_timer_update()


async def settled(pilot: Pilot[Any]) -> None:
    """Waits for the screen to stop changing."""
    await pilot.pause()
    before = ""
    while before != (before := screen_text(pilot.app)):
        await pilot.pause(0.03)


async def idle(pilot: Pilot[Any]) -> None:
    """Waits until everything that the pressed keys requested is done: nothing works, and the screen
    does not change."""
    await pilot.pause()
    await until(pilot, lambda: all(worker.is_finished for worker in pilot.app.workers))
    await settled(pilot)


async def idle_when(pilot: Pilot[Any], holds: Callable[[], bool]) -> None:
    """`idle`, once something is true."""
    await idle(pilot)
    if not holds():
        await until(pilot, holds)
        await settled(pilot)
