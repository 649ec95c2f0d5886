"""Fixtures that write files byte by byte, and a fake hub, for the tests of models."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub
from hub_models import running_hub
from local_models import A, B, save, write_index

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file from a length field, a header (text, bytes or an object) and data."""

    def write_file(
        header: str | bytes | dict,
        data: bytes = b"",
        *,
        name: str = "model.safetensors",
        length: int | None = None,
    ) -> Path:
        raw = json.dumps(header) if isinstance(header, dict) else header
        raw = raw.encode() if isinstance(raw, str) else raw
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
        return path

    return write_file


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with `org/one` (one file) and `org/two` (shards), huggingface_hub pointed at it."""
    with running_hub(tmp_path, monkeypatch) as server:
        yield server


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save(tmp_path / "model-00001-of-00002.safetensors", a=A)
    save(tmp_path / "model-00002-of-00002.safetensors", b=B)
    write_index(
        tmp_path, {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    )
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    return tmp_path
