"""A hub with two models, and how tests open them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from fake_hub import FakeHub, serve
from huggingface_hub import constants, file_download
from safetensors.numpy import save

from qtui_core.errors import ModelError
from qtui_core.models import hub, open_model

ROWS, COLUMNS = 1000, 300
BIG = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)
SMALL = np.arange(4, dtype=np.float16)
CONFIG = b'{"architectures": ["LlamaForCausalLM"], "hidden_size": 300}'
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def repository() -> dict[str, bytes]:
    index = {"weight_map": {"big": FIRST, "small": SECOND}}
    return {
        "config.json": CONFIG,
        "README.md": b"# model",
        FIRST: save({"big": BIG}),
        SECOND: save({"small": SMALL}),
        "model.safetensors.index.json": json.dumps(index).encode(),
    }


@contextmanager
def running_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with `org/one` (one file) and `org/two` (shards), to which huggingface_hub is
    directed."""
    monkeypatch.setattr(hub, "RETRY_WAITS", (0.01, 0.01))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with serve() as server:
        server.repos["org/one"] = {
            "config.json": CONFIG,
            "model.safetensors": save({"big": BIG, "small": SMALL}),
        }
        server.repos["org/two"] = repository()
        point_at(server.url, tmp_path / "cache", monkeypatch)
        yield server


def point_at(url: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(file_download, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def open_and_read(text: str) -> None:
    source = open_model(text)
    for info in source.tensors.values():
        source.read_rows(info.name, 0, 1)


def says(text: str, match: str) -> str:
    """The sentence of the error when this model is opened or read."""
    with pytest.raises(ModelError, match=match) as caught:
        open_and_read(text)
    message = str(caught.value)
    assert message.isprintable()
    assert message.endswith(".")
    assert len(message) < 500
    return message
