"""The bytes that a key of the app sends to the terminal, through a pseudo-terminal: what an SSH
connection carries. They hardly depend on the machine: a slow one shows more of what is done so far.
"""

import pytest
from terminals import program

pytestmark = [pytest.mark.bench, pytest.mark.pty]

#: Of any key, and of one that changes a number.
LIMIT, LIMIT_NUMBER = 40_000, 200
#: What a key does, the key, and the seconds of quiet after which it is done.
KEYS = (
    ("help", "?", 0.5),
    ("close", "\x1b", 0.8),
    ("another bit", "\x1b[C", 0.5),
    ("Quantize", "2", 3.0),
    ("next tensor", "\x1b[B", 2.0),
    ("next tensor", "\x1b[B", 2.0),
    ("to the picture", "\r", 0.5),
    ("zoom in", "+", 1.0),
    ("another map", "m", 1.0),
    ("maximise", "z", 2.0),
    ("bring back", "z", 2.0),
    ("worst tensor", "w", 2.0),
    ("next view", "v", 1.5),
    ("palette", "\x10", 0.8),
    ("close", "\x1b", 0.8),
    ("Memory", "4", 3.0),
    ("another batch", "\x1b[C", 1.0),
    ("Train", "5", 3.0),
    ("Numerics", "6", 2.0),
    ("Hardware", "7", 1.0),
    ("Quantize again", "2", 2.0),
    ("all again", "\x0c", 0.5),
)


@pytest.mark.parametrize("color", ["truecolor", ""])
@pytest.mark.parametrize("size", [(120, 40), (200, 50)])
def test_keys_take_few_bytes(tmp_path, size, color):
    with program(tmp_path, "-m", "qtui", "demo", size=size, COLORTERM=color) as terminal:
        terminal.wait_for("parameters")
        terminal.settle(0.8)
        took = {"start": len(terminal.written)}
        for name, key, quiet in KEYS:
            before = len(terminal.written)
            terminal.send(key)
            terminal.settle(quiet)
            took[name] = max(took.get(name, 0), len(terminal.written) - before)
    told = ", ".join(f"{name} {count:,}" for name, count in took.items())
    print(f"\nbytes at {size[0]}x{size[1]}, {color or '256 colours'}: {told}")
    assert took["another bit"] < LIMIT_NUMBER
    if size == (120, 40):
        assert max(took.values()) < LIMIT
