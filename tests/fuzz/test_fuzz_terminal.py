"""Random keys, clicks, pastes, bytes and sizes for the real app in a terminal: whatever is typed,
it ends only when it is told to, and in order.

FUZZ_TERMINAL=SECONDS types for longer, each time from another seed: the name of the test has it.
"""

from __future__ import annotations

import os
import random
import select
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from processes import family, is_gone
from terminals import Terminal, program

pytestmark = [
    pytest.mark.pty,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="/proc says who is there"),
]

SECONDS = float(os.environ.get("FUZZ_TERMINAL", "8"))
LETTERS = "12345678abcdefghijklmnoprstuvwxyzABCDEFGHIJKLMNOPRSTUVWXYZ"
SIGNS = "+-.,/:[]{}()*?<>=09 \t\r\r\r\x1b\x7f\x10\x0f\x0c"
MOVES = ("A", "B", "C", "D", "5~", "6~", "H", "F", "Z", "3~", "1;5A", "1;2C", "I", "O")
BUTTONS = (0, 0, 0, 1, 2, 35, 32, 64, 65)
#: These would end or suspend the app, or are left to its terminal.
LEAVING = bytes.maketrans(b"\x03\x11\x13\x1a\x1cq", b"      ")
WIDTHS, HEIGHTS = (1, 20, 60, 80, 100, 200), (1, 10, 24, 30, 60)


def typed(rng: random.Random) -> bytes:
    """One key, click, paste, or a few bytes without a meaning."""
    kind = rng.random()
    if kind < 0.55:
        return rng.choice(LETTERS + SIGNS).encode()
    if kind < 0.75:
        return f"\x1b[{rng.choice(MOVES)}".encode()
    if kind < 0.9:
        where = f"{rng.choice(BUTTONS)};{rng.randint(1, 100)};{rng.randint(1, 30)}"
        return f"\x1b[<{where}M\x1b[<{where}m".encode()
    if kind < 0.95:
        text = "".join(chr(rng.randrange(32, 127)) for _ in range(rng.choice((1, 5, 300))))
        return f"\x1b[200~{text}\x1b[201~".encode()
    return rng.randbytes(rng.choice((1, 3, 20)))


def type_at_random(terminal: Terminal, rng: random.Random) -> bool:
    """In bursts, as a slow line or a held key delivers them, whether the app reads them or not.
    Returns whether the app is still there: a click may have chosen to quit."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        burst = b"".join(typed(rng) for _ in range(rng.choice((1, 1, 1, 3, 10, 60))))
        if select.select([], [terminal.fd], [], 1)[1]:
            with suppress(OSError):  # it has just ended, which the next read tells
                os.write(terminal.fd, burst.translate(LEAVING)[:2000])
        if rng.random() < 0.02:
            terminal.resize(rng.choice(WIDTHS), rng.choice(HEIGHTS))
        pause = time.monotonic() + rng.choice((0, 0.01, 0.05, 0.3))
        while time.monotonic() < pause:
            if not terminal.read(0.01):
                return False
    return True


@pytest.mark.parametrize("seed", [1, 2] if SECONDS <= 8 else [random.randrange(1 << 30)])
def test_nothing_that_is_typed_ends_the_app(tmp_path, seed):
    # A typed name of a model is looked for at this hub, which nobody is.
    with program(tmp_path, "-m", "qtui", "demo", HF_ENDPOINT="http://127.0.0.1:9") as terminal:
        terminal.wait_for("Formats")
        started = []
        if there := type_at_random(terminal, random.Random(seed)):
            started = family(terminal.pid)
            os.kill(terminal.pid, signal.SIGTERM)
            os.kill(terminal.pid, signal.SIGCONT)  # a click may have suspended it
        code = terminal.exit_code()
        said = terminal.written[-3000:].decode("utf-8", "replace")
        assert code == (-signal.SIGTERM if there else 0), said
        assert all(map(is_gone, started))
        assert b"qtui stopped" not in terminal.written, said
        (log,) = tmp_path.rglob("qtui.log")
        assert "unhandled" not in log.read_text()
