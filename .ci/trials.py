"""What is tried with a qtui that was just installed: commands, the app, and the app in a browser.

Each is a function of the Python that has it and of a folder to run in; it prints a line and returns
whether all was well.
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import time
import tomllib
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: What a user can ask for: all but what tests take.
EXTRAS = [extra for extra in PROJECT["optional-dependencies"] if extra != "test"]
BOOT_SECONDS = 120


def run(python: Path, folder: Path, words: tuple[str, ...]) -> bool:
    """One command as a user types it; what it says is shown where it fails."""
    began = time.monotonic()
    done = subprocess.run(
        [python, "-m", "qtui", *words], cwd=folder, capture_output=True, text=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    # `qtui doctor` reports a library that cannot be imported, and goes on.
    bad = done.returncode != 0 or "Traceback" in done.stderr or "NotFoundError" in done.stdout
    line = f"{time.monotonic() - began:6.1f} s  qtui {' '.join(words)}"
    print(f"{'FAILED' if bad else 'ok':7}{line}", flush=True)
    if bad:
        print(done.stdout[-2000:], done.stderr[-4000:], sep="\n")
    return not bad


def boots(python: Path, folder: Path) -> bool:
    """Whether the app opens in a terminal, its engine answers a panel, and `q` ends it."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.environ.update(TERM="xterm-256color", COLUMNS="120", LINES="40", QTUI_STATE="0")
        os.execv(python, [str(python), "-m", "qtui", "demo"])
    seen, end = b"", time.monotonic() + BOOT_SECONDS
    # What the screen has to show, and the key that is pressed then.
    waiting = [(b"Formats", b"2"), (b"SQNR", b"q")]
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                seen += os.read(terminal, 1 << 16)
            except OSError:  # the other side is closed: it has ended
                break
        if waiting and waiting[0][0] in seen:
            seen = b""
            os.write(terminal, waiting.pop(0)[1])
    else:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    good = not waiting and code == 0
    print(f"{'ok' if good else 'FAILED':7}          qtui demo (the app, code {code})", flush=True)
    if not good:
        print(seen[-2000:].decode(errors="replace").replace("\33", "ESC"))
    return good


def serves(python: Path, folder: Path) -> bool:
    """Whether `qtui serve` answers to its token and to no other, and ends with Ctrl-C."""
    # In the background a shell has this signal ignored, which children would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    server = subprocess.Popen(
        [python, "-m", "qtui", "serve"], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    said = server.stderr.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+/\S+/", said)
    answers = [status(found[0]), status(f"{found[0][:-5]}AAAA/")] if found else []
    server.send_signal(signal.SIGINT)
    try:
        said += server.communicate(timeout=BOOT_SECONDS)[1]
    except subprocess.TimeoutExpired:
        server.kill()
        said += server.communicate()[1]
    good = answers == [200, 403] and server.returncode == 0
    print(f"{'ok' if good else 'FAILED':7}          qtui serve (answers {answers})", flush=True)
    if not good:
        print(said[-4000:])
    return good


def status(url: str) -> int:
    """The status with which a server answers."""
    try:
        with urlopen(url, timeout=BOOT_SECONDS) as answer:
            return answer.status
    except HTTPError as error:
        return error.code
