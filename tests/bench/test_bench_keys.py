"""The time from a key to its drawing, through a pseudo-terminal, while something works: the engine
quantizes, a plan is estimated, a run takes its steps, an experiment trains.

A key on a picture moves the mark on its axis, one in a form or a list the pointer. The latency is
the time from writing the key to reading the bytes that move it. What a real terminal then needs to
show them is not included.

It is held against a bare Textual app with a list, in the same run.
"""

from __future__ import annotations

import math
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from terminals import Terminal, program, seen

from qtui.tui.panels import PANELS

pytestmark = [pytest.mark.bench, pytest.mark.pty]

Opened = Callable[[str | Path], Terminal]

TITLE_LINE, MAP_LINE, PEAK_LINE = 6, 8, 5
SHAPE = (4096, 14336)
CONFIG = Path(__file__).parents[1] / "memory" / "configs" / "llama-3.1-8b.json"
BATCH = re.compile(r"batch +(\d+)")
LIMIT_TIMES_BARE, LIMIT_ANSWER_MS = 4.0, 50.0
BARE = """
from textual.app import App
from textual.widgets import Footer, OptionList
class Bare(App):
    BINDINGS = [("q", "quit", "Quit")]
    def compose(self):
        yield OptionList(*(f"{number} Formats" for number in range(60)))
        yield Footer()
Bare().run()
"""
MARK, POINTER = "▲", "▸"
#: The columns in which a pointer may be: of a form, and of the list at its left.
POINTED = 3
# The pace of someone who moves quickly, without holding the key down.
WINDOW_SECONDS = 0.06
RIGHT, LEFT, DOWN, UP = "\x1b[C", "\x1b[D", "\x1b[B", "\x1b[A"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens a model in the app, in a terminal of 120 columns."""
    with ExitStack() as stack:

        def run(model: str | Path) -> Terminal:
            terminal = stack.enter_context(
                program(tmp_path, "-m", "qtui", str(model), size=(120, 40), COLORTERM="truecolor")
            )
            terminal.wait_for("Formats")
            rest(terminal, 1.0)
            return terminal

        yield run


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The 95th percentile of a bare Textual app, in milliseconds."""
    home = tmp_path_factory.mktemp("bare")
    with program(home, "-c", BARE, size=(120, 40), COLORTERM="truecolor") as terminal:
        terminal.wait_until(lambda: terminal.text.strip())
        terminal.settle(3.0, 30.0)
        took = [whole_latency(terminal, key) for key in ([DOWN] * 20 + [UP] * 20) * 2]
    told(bare=took)
    return p95(took)


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "large.safetensors"
    weight = np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32)
    save_file({"model.layers.0.mlp.down_proj.weight": weight}, path)
    return path


def rest(terminal: Terminal, seconds: float) -> None:
    """Reads for a while."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        terminal.read(0.01)


def press(terminal: Terminal, key: str, seconds: float = 0.5) -> None:
    terminal.send(key)
    rest(terminal, seconds)


def latency(terminal: Terminal, key: str, watched: Callable[[Terminal], object]) -> float:
    """Milliseconds until the value of `watched` has changed."""
    before = watched(terminal)
    pressed = time.perf_counter()
    terminal.send(key)
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        moved = None
        for came in terminal.timed(WINDOW_SECONDS):
            if moved is None and watched(terminal) not in (None, before):
                moved = came
        if moved is not None:
            return 1000 * (moved - pressed)
    raise AssertionError("the key was not answered\n" + terminal.text)


def whole_latency(terminal: Terminal, key: str) -> float:
    """Milliseconds until anything on the screen has changed, and a pause."""
    took = latency(terminal, key, lambda terminal: seen(terminal.screen))
    rest(terminal, 0.1)
    return took


def p95(samples: list[float]) -> float:
    return statistics.quantiles(samples, n=20)[-1]


def told(**samples: list[float]) -> None:
    """Prints the milliseconds of each kind of key."""
    parts = [
        f"{name} p95 {p95(took):.1f} ms (median {statistics.median(took):.1f}, max "
        f"{max(took):.1f}, {len(took)} keys)"
        for name, took in samples.items()
    ]
    print(f"\n{', '.join(parts)}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def mark(terminal: Terminal) -> tuple[int, int] | None:
    """Line and column of the upper of the marks below the picture."""
    lines = enumerate(terminal.screen.display)
    return next(((number, line.index(MARK)) for number, line in lines if MARK in line), None)


def pointed(terminal: Terminal) -> tuple[int, ...] | None:
    """The current lines of the list and of the form; None while there are none."""
    lines = enumerate(terminal.screen.display)
    return tuple(n for n, line in lines if n > 1 and POINTER in line[:POINTED]) or None


def is_working(terminal: Terminal) -> bool:
    """Whether the line above the picture shows progress."""
    return "%" in terminal.screen.display[TITLE_LINE]


def test_a_key_in_every_panel_is_painted_about_as_soon_as_by_a_bare_app(opened, bare):
    terminal = opened("demo")
    took = {}
    for panel in PANELS:
        # The fifth view of Hardware has a list, which needs no GPU.
        terminal.send(str(panel.number) + "vvvv" * (panel.id == "hardware"))
        terminal.settle(3.0, 60.0)
        took[panel.title] = [whole_latency(terminal, key) for key in ([DOWN] * 2 + [UP] * 2) * 10]
    told(**took)
    worst = max(took, key=lambda name: p95(took[name]))
    assert p95(took[worst]) < LIMIT_TIMES_BARE * bare, worst


def test_keys_are_painted_while_a_large_tensor_is_quantized(opened, large_model, bare):
    terminal = opened(large_model)
    terminal.send("2")
    terminal.wait_for("all 58,720,256 values")
    terminal.wait_until(lambda: not is_working(terminal))
    press(terminal, "\r")  # from the list to the picture
    press(terminal, LEFT * 30)  # space at the right
    idle, busy = [], []
    for _ in range(20):
        idle.append(latency(terminal, RIGHT, mark))
        rest(terminal, 0.03)
    # Another granularity, and other rounding on the way back: a scheme that is not known already,
    # so that the whole tensor is quantized again.
    for key in ")))))R(((((":
        terminal.send(key)
        terminal.wait_until(lambda: is_working(terminal))
        for step in range(40):
            if not is_working(terminal):
                break
            busy.append(latency(terminal, LEFT if step % 2 else RIGHT, mark))
            rest(terminal, 0.03)
    told(idle=idle, quantizing=busy)
    assert len(busy) >= 40
    assert p95(busy) < LIMIT_TIMES_BARE * bare


@pytest.mark.parametrize("seconds", [3.0, 0.4])
def test_a_turned_knob_is_answered(opened, bare, seconds):
    """In the form of the Memory panel, painted and with the first answer: when the user waits for
    the whole estimate, and when not. The values go on, so that no answer is known already."""
    terminal = opened(CONFIG)
    terminal.send("4")
    terminal.wait_until(lambda: "process" in terminal.text and "estimating" not in terminal.text)
    rest(terminal, 1.0)
    painted, answered = [], []
    for key in [*[RIGHT] * 16, LEFT]:
        before = _batch(terminal), _peak(terminal)
        pressed = time.perf_counter()
        terminal.send(key)
        paint = answer = math.inf
        for came in terminal.timed(seconds):
            if paint == math.inf and _batch(terminal) != before[0]:
                paint = came
            if answer == math.inf and _peak(terminal) not in ("", before[1]):
                answer = came
        painted.append(1000 * (paint - pressed))
        answered.append(1000 * (answer - pressed))
    told(painted=painted, answered=answered)
    assert p95(painted) < LIMIT_TIMES_BARE * bare
    assert statistics.median(answered) < LIMIT_ANSWER_MS


def _batch(terminal: Terminal) -> str:
    found = BATCH.search(terminal.text)
    return found.group(1) if found else ""


def _peak(terminal: Terminal) -> str:
    found = re.search(r"peak [\d.]+ .iB", terminal.screen.display[PEAK_LINE])
    return found.group() if found else ""


def test_the_form_answers_while_a_run_takes_its_steps(opened, bare):
    terminal = opened("demo")
    terminal.send("5")
    terminal.wait_for("k-bit prep")
    rest(terminal, 2.0)
    samples: list[float] = []
    while len(samples) < 40:
        terminal.send("r")
        terminal.wait_for(" a step")
        rest(terminal, 0.5)
        while "running" in terminal.text and len(samples) < 40:
            key = UP if len(samples) // 8 % 2 else DOWN
            samples.append(latency(terminal, key, pointed))
            rest(terminal, 0.13)
    told(form=samples)
    assert p95(samples) < LIMIT_TIMES_BARE * bare


def test_the_panel_answers_while_an_experiment_trains(opened, bare):
    """Keys of the form, where a line is drawn anew, and of the list, where all of the panel is."""
    terminal = opened("demo")
    terminal.send("6")
    terminal.wait_for("underflow")
    rest(terminal, 3.0)
    press(terminal, "\r")  # from the list to the form
    idle = _turns(terminal, 30)
    terminal.send("r")
    terminal.wait_until(lambda: "running" in terminal.text and "step" in terminal.text)
    form = _turns(terminal, 60)  # more keys would outlast the experiment
    press(terminal, "\t\t")  # round to the list
    took = {"idle": idle, "form": form, "list": _turns(terminal, 60)}
    told(**took)
    assert max(map(p95, took.values())) < LIMIT_TIMES_BARE * bare


def _turns(terminal: Terminal, count: int) -> list[float]:
    took = []
    for number in range(count):
        took.append(latency(terminal, DOWN if number % 4 < 2 else UP, pointed))
        rest(terminal, 0.1)
    return took
