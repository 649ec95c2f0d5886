"""Runs `qtui ARGS` inside the process of the tests.

Arguments, environment, working folder, exit code and file descriptors 0 to 2 are as in a process of
its own, so the output of child processes is captured too. Tests of signals, closed streams and
imports need a real process: the fixture `qtui_process`.
"""

from __future__ import annotations

import gc
import io
import os
import pty
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_qtui(
    *args: str,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    main: Callable[[], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a command without a terminal; returns its exit code, stdout and stderr.

    `main` replaces the console script. An exception that would end the process with a traceback is
    raised.
    """
    with (
        open(os.devnull, "rb") as nothing,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        code = _run(args, (nothing.fileno(), out.fileno(), err.fileno()), env, cwd, main)
        return subprocess.CompletedProcess(["qtui", *args], code, _text(out), _text(err))


def run_in_terminal(*args: str, env: dict[str, str]) -> tuple[int, str]:
    """Runs a command in a pseudo-terminal; returns its exit code and its output."""
    leader, follower = pty.openpty()
    written: list[bytes] = []

    def read() -> None:
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # Linux raises EIO when the other end is closed
                return
            if not part:
                return
            written.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        code = _run(args, (follower, follower, follower), env)
    finally:
        os.close(follower)
        reader.join()
        os.close(leader)
    return code, b"".join(written).decode(errors="replace")


def _run(
    args: tuple[str, ...],
    streams: tuple[int, int, int],
    env: dict[str, str] | None,
    cwd: Path | None = None,
    main: Callable[[], None] | None = None,
) -> int:
    if main is None:
        from qtui.cli import main
    assert main is not None
    changed = env or {}
    imported = [name for name in changed if name.startswith("HF_")]
    assert not imported, f"{imported} are read where the hub's library is imported: qtui_process"
    handlers = {each: signal.getsignal(each) for each in SIGNALS}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changed.items():
            patch.setenv(name, value)
        if cwd is not None:
            patch.chdir(cwd)
        patch.setattr(sys, "argv", ["qtui", *args])
        try:
            with _standard(streams):
                main()
        except SystemExit as done:
            return done.code if isinstance(done.code, int) else int(done.code is not None)
        finally:
            gc.enable()
            for each, handler in handlers.items():
                signal.signal(each, handler)
    return 0


@contextmanager
def _standard(streams: tuple[int, int, int]) -> Iterator[None]:
    """Makes `streams` stdin, stdout and stderr of this process and its children."""
    encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    before = sys.stdin, sys.stdout, sys.stderr
    kept = [os.dup(number) for number in (0, 1, 2)]
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = _stream(1, encoding, "strict")
        sys.stderr = _stream(2, encoding, "backslashreplace")
        yield
    finally:
        for written in (sys.stdout, sys.stderr):
            written.flush()
        sys.stdin, sys.stdout, sys.stderr = before
        for number, copy in enumerate(kept):
            os.dup2(copy, number)
            os.close(copy)


def _stream(number: int, encoding: str, errors: str) -> io.TextIOWrapper:
    binary = open(number, "wb", closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(binary, encoding=encoding, errors=errors, line_buffering=number == 2)


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n")
