"""What every test shares: running the real program, and small real checkpoints."""

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

# Workers of pytest-xdist are given a terminal size, which reports would use. They share the cores,
# so each needs only one thread; this must be set before numpy and torch are imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    for _name in ("COLUMNS", "LINES"):
        os.environ.pop(_name, None)
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(_name, "1")

SUPPORT = Path(__file__).parent / "support"
#: How tests import a library that takes seconds, so that collecting them takes none.
MUCH = re.compile(
    rf"{lazy_imports.__name__}|importorskip|^ *(?:import|from) (?:torch|transformers)\b",
    re.MULTILINE,
)
#: Marks of tests that may compile kernels.
COMPILED = ("slow", "bench", "gpu")

#: Of the slow suite the files that take longest, the longest first. With `--dist loadfile` a worker
#: takes a file whole, so one that is begun last would keep the other workers waiting for its end.
LONGEST = (
    "test_memory_drift",
    "test_lab_qat",
    "test_lab_claims",
    "test_memory_trace",
    "test_cli_hostile",
    "test_lab_lowbit",
    "test_lab_range",
    "test_memory_sharding",
    "test_memory_sharing",
    "test_conformance_verdicts",
    "test_quantize_panel_recovery",
    "test_training_child",
    "test_memory_truth",
    "test_memory_optimizer",
    "test_outliers_view",
    "test_lab_nvfp4",
)

# A session starts a hundred programs, and each would compile all of qtui again if bytecode is not
# written. (Container images often disable it.)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# An estimate or an app creates so many objects that Python's garbage collector runs often and finds
# nothing: this took a third of the time of a test. It runs less often here.
gc.set_threshold(400_000, 10, 20)

Run = Callable[..., subprocess.CompletedProcess[str]]

# In the background or under nohup, interruption and hang-up are ignored by the tests, and so by
# every program that they start to test these signals.
for _signal, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _handler)


def pytest_configure(config: pytest.Config) -> None:
    """Workers get files in the order that is made here, not by how many tests they have."""
    config.option.loadscopereorder = False


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> Generator[None, int, int]:
    """One worker more than cores where any worker takes any test (`-n logical`): a test of the app
    or of a child waits a part of its time for a timer or for the child, and no core for both."""
    return (yield) + (config.option.dist == "worksteal")


@functools.cache
def imports_much(path: Path) -> bool:
    """Whether a file, or what it takes from a file beside it or in tests/support, imports a library
    that takes seconds."""
    text = path.read_text("utf-8")
    if MUCH.search(text):
        return True
    names = re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)
    parts = [folder / f"{name}.py" for name in names for folder in (SUPPORT, path.parent)]
    return any(part.exists() and imports_much(part) for part in parts)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begins the slow suite with its longest files. The default one begins with the tests that
    import libraries of seconds: workers begin at different places of the list, so that one of them
    spends the seconds, and most of the others never do."""
    if config.option.markexpr == "slow":
        places = {name: place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: places.get(item.path.stem, len(places)))
    else:
        items.sort(key=lambda item: not imports_much(item.path))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Objects that exist by now stay, so the garbage collector need not search them in every test.
    A run without slow tests compiles no kernels: bitsandbytes would take seconds for each on a CPU,
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
