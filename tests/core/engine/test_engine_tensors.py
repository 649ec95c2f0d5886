"""Rows of stored tensors, local and remote."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from qtui.engine import tensors
from qtui.engine.tensors import OpenModels, OpenTensor, RemoteRows
from qtui_core.errors import ModelError
from qtui_core.models import open_model


class Far:
    """A remote source that records requested rows."""

    def __init__(self, path: Path) -> None:
        self.near = open_model(path)
        self.asked: list[tuple[int, int]] = []

    def read_rows(self, name: str, start: int, stop: int) -> memoryview:
        self.asked.append((start, stop))
        return self.near.read_rows(name, start, stop)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((100, 32)).astype(np.float16)
    path = tmp_path / "m.safetensors"
    save_file({"x": x, "v": x[:, 0].copy(), "s": np.array(3.0, np.float32)}, path)
    return path, x


def test_remote_rows_are_fetched_once(saved, monkeypatch):
    path, x = saved
    monkeypatch.setattr(tensors, "REMOTE_STRIP_BYTES", 7 * 64)  # seven rows
    far = Far(path)
    rows = RemoteRows(far, far.near.tensor("x"))
    rng = np.random.default_rng(1)
    for _ in range(60):
        start, stop = sorted(map(int, rng.integers(0, 101, 2)))
        assert np.array_equal(rows.rows(start, stop), x[start:stop].astype(np.float32))
    assert len(far.asked) == len(set(far.asked)) <= 15
    assert all(stop - start <= 7 for start, stop in far.asked)


def test_a_vector_is_given_flat_and_a_matrix_by_rows(saved):
    path, x = saved
    source = open_model(path)
    matrix = OpenTensor(source, source.tensor("x"))
    assert matrix.rows(3, 5).shape == (2, 32)
    vector = OpenTensor(source, source.tensor("v"))
    assert vector.shape == (100,)
    assert np.array_equal(vector.rows(10, 20), x[10:20, 0].astype(np.float32))
    scalar = OpenTensor(source, source.tensor("s"))
    assert scalar.rows(0, 1).tolist() == [3.0]


def test_a_model_is_opened_once_and_again_when_asked(saved):
    path, _ = saved
    forgotten: list[bool] = []
    models = OpenModels(lambda: forgotten.append(True))
    first = models.source(str(path))
    assert models.source(str(path)) is first
    second = models.open(str(path))
    assert second is not first
    os.utime(path, (0, 0))
    with pytest.raises(ModelError, match="was changed after it was opened"):
        models.tensor(str(path), "x").rows(0, 1)
    assert models.source(str(path)) is not second
    assert len(forgotten) == 3
    with pytest.raises(ModelError):
        models.tensor(str(path), "nothing")
