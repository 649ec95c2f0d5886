"""Files made by hand, byte by byte, for the tests of qtui_core.models."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file of a length field, a header (text, bytes or an object) and data."""

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


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict:
    """The description of one tensor in a header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
