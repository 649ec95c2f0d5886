"""What every test shares: running the real program, and small real checkpoints."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import run_qtui

# Workers of pytest-xdist are told the size of a terminal, which reports would obey. They share the
# cores, so that one thread each is enough: to be said before numpy and torch are imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    for _name in ("COLUMNS", "LINES"):
        os.environ.pop(_name, None)
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(_name, "1")

Run = Callable[..., subprocess.CompletedProcess[str]]

# Started in the background or under nohup, tests would ignore interruption and hang-up, and so
# would every program that they start to see whether it obeys them.
for _signal, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _handler)


def pytest_configure(config: pytest.Config) -> None:
    """Only slow tests have kernels compiled: bitsandbytes takes seconds for each on a CPU, and
    takes the same operations one by one where it cannot."""
    if "not slow" in config.option.markexpr:
        os.environ["TORCHDYNAMO_DISABLE"] = "1"


def pytest_collection_finish() -> None:
    """What is imported by now stays: the collector need not go through it in every test."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def qtui() -> Run:
    """Runs `qtui ARGS` inside this process, without a terminal: see command_line.py."""
    return run_qtui


@pytest.fixture
def qtui_process() -> Run:
    """Runs `python -m qtui ARGS` as a user would, without a terminal: where a process of its own
    is what is tested."""

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
    """A folder with a small real checkpoint: matrices with planted outliers, a norm, a bias."""
    import numpy as np
    from safetensors.numpy import save_file

    random = np.random.default_rng(7)
    folder = tmp_path / "small"
    folder.mkdir()
    up = random.normal(0, 0.02, (192, 128)).astype(np.float32)
    up[17, 5] = 0.9
    up[100, 5] = -0.8
    save_file(
        {
            "layers.0.up.weight": up,
            "layers.0.down.weight": random.normal(0, 0.05, (128, 192)).astype(np.float16),
            "layers.0.norm.weight": np.ones(128, np.float32),
            "layers.0.up.bias": np.zeros(192, np.float32),
        },
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps({"architectures": ["TestModel"]}))
    return folder


@pytest.fixture(autouse=True, scope="session")
def no_profiles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Estimates of tests know nothing that was measured on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield
