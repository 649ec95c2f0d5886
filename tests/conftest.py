"""What every test shares: running the real program, and small real checkpoints."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import run_qtui

# Workers of pytest-xdist are told a terminal size, which reports would obey. They share the cores,
# so each needs only one thread, which must be set before numpy and torch are imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    for _name in ("COLUMNS", "LINES"):
        os.environ.pop(_name, None)
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(_name, "1")

#: Marks of tests that may compile kernels.
COMPILED = ("slow", "bench", "gpu")

# A session starts a hundred programs, and each would compile all of qtui again. (Images of
# containers often ask for that.)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# An estimate, or an app, makes more objects than Python collects after: a third of the time of a
# test was the collector's, which finds nothing. It looks less often here.
gc.set_threshold(400_000, 10, 20)

Run = Callable[..., subprocess.CompletedProcess[str]]

# In the background or under nohup, tests would ignore interruption and hang-up, and so would every
# program that they start to test these.
for _signal, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _handler)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is imported by now stays, so the garbage collector need not search it in every test. A
    run without slow tests compiles no kernels: bitsandbytes would take seconds for each on a CPU,
    and otherwise uses separate operations."""
    if not any(item.get_closest_marker(mark) for item in session.items for mark in COMPILED):
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
    gc.collect()
    gc.freeze()


@pytest.fixture
def qtui() -> Run:
    """Runs `qtui ARGS` inside this process, without a terminal: see command_line.py."""
    return run_qtui


@pytest.fixture
def qtui_process() -> Run:
    """Runs `python -m qtui ARGS` as a user would, without a terminal: for tests of the process
    itself."""

    def run(*args: str, env: dict[str, str] | None = None, **options: object):
        return subprocess.run(
            [sys.executable, "-m", "qtui", *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            **options,
        )

    return run


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder with a small real checkpoint (tests/support/local_models.py)."""
    from local_models import write_small

    return write_small(tmp_path / "small")


@pytest.fixture(autouse=True, scope="session")
def no_profiles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """In tests, estimates use no measurements of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield
