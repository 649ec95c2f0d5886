"""`qtui replay` in a (pseudo-)terminal opens the app on the recording."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time

import pyte
import pytest
from live_runs import run

from qtui_core.live.state import to_line

pytestmark = [pytest.mark.pty, pytest.mark.slow]


@pytest.mark.parametrize("model", ["demo", "no/such/model"])
def test_a_recording_opens_in_the_train_panel(tmp_path, model):
    path = tmp_path / "run.jsonl"
    lines = [to_line(told) for told in run()]
    path.write_text("\n".join([lines[0].replace('"demo"', f'"{model}"'), *lines[1:]]) + "\n")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    child = subprocess.Popen(
        [sys.executable, "-m", "qtui", "replay", str(path)],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    os.close(theirs)
    screen = pyte.Screen(100, 30)
    stream = pyte.ByteStream(screen)
    end = time.monotonic() + 120
    while "step 3 of 3" not in "\n".join(screen.display):
        assert time.monotonic() < end, "\n".join(screen.display)
        if select.select([ours], [], [], 0.1)[0]:
            stream.feed(os.read(ours, 1 << 16))
    os.write(ours, b"q")
    while child.poll() is None:
        assert time.monotonic() < end + 120
        if select.select([ours], [], [], 0.1)[0]:
            try:
                os.read(ours, 1 << 16)
            except OSError:  # how Linux says that the other end is closed
                break
    assert child.wait(120) == 0
    os.close(ours)
