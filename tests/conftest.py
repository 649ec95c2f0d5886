"""Shared by all tests: fixtures that run the program and write small checkpoints, and the order of
tests."""

from __future__ import annotations

import functools
import gc
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import lazy_imports
import pytest
from command_line import run_qtui

# pytest-xdist gives its workers a terminal size, which reports would use. Workers share the cores,
# so each uses one thread; this must be set before numpy and torch are imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    for _name in ("COLUMNS", "LINES"):
        os.environ.pop(_name, None)
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(_name, "1")

SUPPORT = Path(__file__).parent / "support"
#: How tests lazily import libraries that take seconds, so that collection is fast.
HEAVY = re.compile(
    rf"{lazy_imports.__name__}|importorskip|^ *(?:import|from) (?:torch|transformers)\b",
    re.MULTILINE,
)
#: Marks of tests that may compile kernels.
COMPILED = ("slow", "bench", "gpu")

#: The slowest files of the slow suite, the slowest first. With `--dist loadfile` a worker runs a
#: whole file, so a slow file must not be the last to start.
LONGEST = (
    "test_memory_drift",
    "test_lab_qat",
    "test_lab_claims",
    "test_training_child",
    "test_faults_of_children",
    "test_cli_hostile",
    "test_memory_trace",
    "test_lab_lowbit",
    "test_lab_range",
    "test_memory_sharding",
    "test_memory_sharing",
    "test_conformance_verdicts",
    "test_training_live",
    "test_quantize_panel_recovery",
    "test_train_layout",
    "test_tui_memory_processes",
    "test_memory_inference",
    "test_models_demo",
    "test_memory_optimizer",
    "test_memory_truth",
    "test_memory_heads",
    "test_memory_tape_steps",
    "test_train_live",
    "test_cli_memory_estimate",
    "test_lab_gradients",
    "test_cli_bare",
    "test_outliers_view",
)

# The tests start a hundred programs. Without bytecode files, which container images often disable,
# each would compile all of qtui again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# No test reads where the user of this machine was, or changes it.
os.environ["QTUI_STATE"] = "0"

# Estimates and apps create so many objects that the garbage collector, which finds nothing, took a
# third of the time of a test. It runs less often here.
gc.set_threshold(400_000, 10, 20)

Run = Callable[..., subprocess.CompletedProcess[str]]

# In the background or under nohup, SIGINT and SIGHUP are ignored; the programs that tests start
# would inherit that.
for _signal, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _handler)


def pytest_configure(config: pytest.Config) -> None:
    """Makes workers start files in the order of this file, not by their number of tests, and lets a
    test of hypothesis take as long as a busy machine needs."""
    config.option.loadscopereorder = False
    from hypothesis import settings

    settings.register_profile("unhurried", deadline=None)
    settings.load_profile("unhurried")


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """One worker more than cores (`-n logical`), because tests of the app and of child processes
    wait part of their time."""
    return (yield) + 1


@functools.cache
def imports_heavily(path: Path) -> bool:
    """Whether a file, or a module that it imports from its folder or from tests/support, imports a
    library that takes seconds."""
    text = path.read_text("utf-8")
    if HEAVY.search(text):
        return True
    names = re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)
    parts = [folder / f"{name}.py" for name in names for folder in (SUPPORT, path.parent)]
    return any(part.exists() and imports_heavily(part) for part in parts)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Starts the slow suite with its slowest files. Starts the default suite with the tests that
    import libraries that take seconds: workers begin at different places of the list, so that few
    of them import these libraries."""
    if config.option.markexpr == "slow":
        places = {name: place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: places.get(item.path.stem, len(places)))
    else:
        items.sort(key=lambda item: not imports_heavily(item.path))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Freezes existing objects, so that the garbage collector does not search them in every test.
    In runs without slow tests, no kernels are compiled: for bitsandbytes on a CPU, each takes
    seconds."""
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
    """Runs `python -m qtui ARGS` in a process, without a terminal: for exit codes, signals and
    imports."""

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
    """Makes estimates in tests independent of profiles measured on this machine, and of traces in
    its cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
