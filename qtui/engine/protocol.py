"""What travels between the screen and the engine.

A request is one line of JSON. An event is one line of JSON, followed by the raw bytes of
the arrays that the line announces, in the announced order:

    {"event": "result", "id": 7, "data": {...},
     "arrays": [{"name": "cells", "dtype": "<f4", "shape": [40, 120], "nbytes": 19200}]}\\n
    <19200 bytes>

An answer is a dataclass, and `qtui_core.codec` says how it looks in JSON. Numbers that JSON has no
word for travel as `NaN`, `Infinity` and `-Infinity`: both ends are Python. Everything here is the
standard library, so that the screen can read an array without importing numpy.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from qtui_core.codec import to_line
from qtui_core.dataclass import dataclass
from qtui_core.errors import QtuiError

# Bounds that no honest frame reaches. They keep a corrupted length from asking for all the
# memory of the machine: the index of a model of 100,000 tensors is about 15 MB of JSON, and
# an array is a picture of at most a few hundred thousand cells.
MAX_HEAD_BYTES = 128 << 20
MAX_ARRAY_BYTES = 64 << 20
MAX_ARRAYS = 64
MAX_REQUEST_BYTES = 1 << 20

# numpy's name of a dtype -> the letter `memoryview.cast` wants. Little-endian only, which is
# what every machine that runs torch is.
CAST_LETTERS: dict[str, Any] = {
    "|b1": "?", "|u1": "B", "|i1": "b", "<u2": "H", "<i2": "h", "<u4": "I", "<i4": "i",
    "<u8": "Q", "<i8": "q", "<f4": "f", "<f8": "d",
}  # fmt: skip
ITEM_BYTES = {name: int(name[2:]) for name in CAST_LETTERS}


class ProtocolError(QtuiError):
    """The bytes on the wire are not a frame."""


@dataclass(frozen=True)
class Array:
    """An array as it came off the wire: C order, shape () to (…,), no numpy."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes = field(repr=False)

    def view(self) -> memoryview:
        """A flat typed view: `view()[row * columns + column]`."""
        return memoryview(self.data).cast(CAST_LETTERS[self.dtype])

    def tolist(self) -> list[Any]:
        """The elements, flat, as Python numbers."""
        return self.view().tolist()


@dataclass(frozen=True)
class Frame:
    """One event: the JSON object of the line and the arrays behind it."""

    head: dict[str, Any]
    arrays: dict[str, Array]


def encode_request(head: Mapping[str, Any]) -> bytes:
    """One request as a line. Raises ProtocolError where it is too long to be sane."""
    line = to_line(head).encode() + b"\n"
    if len(line) > MAX_REQUEST_BYTES:
        raise ProtocolError(f"A request of {len(line):,} bytes is over {MAX_REQUEST_BYTES:,}.")
    return line


def parse_request(line: bytes) -> dict[str, Any]:
    """The request of one line. Raises ProtocolError with what is wrong with it."""
    head = _parse_object(line)
    if not isinstance(head.get("id"), int) or not isinstance(head.get("method"), str):
        raise ProtocolError("A request needs an integer `id` and a text `method`.")
    if not isinstance(head.get("params", {}), dict):
        raise ProtocolError("The `params` of a request are an object.")
    return head


def encode_event(head: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> bytes:
    """One event, its arrays included, as the bytes to write in one go."""
    announced = [
        {"name": name, "dtype": a.dtype, "shape": list(a.shape), "nbytes": len(a.data)}
        for name, a in (arrays or {}).items()
    ]
    line = to_line({**head, "arrays": announced}).encode()
    return b"".join([line, b"\n", *(a.data for a in (arrays or {}).values())])


async def read_event(reader: asyncio.StreamReader) -> Frame | None:
    """The next event, or None at a clean end of the stream (between two frames).

    Raises ProtocolError for a line that is not an event, an array whose length does not
    match its shape, and a stream that ends inside a frame.
    """
    line = await _read_line(reader)
    if not line:
        return None
    if not line.endswith(b"\n"):
        raise ProtocolError("The stream ended inside a frame.")
    head = _parse_object(line)
    if not isinstance(head.get("event"), str):
        raise ProtocolError("A frame names no event.")
    arrays: dict[str, Array] = {}
    for name, dtype, shape, nbytes in _announced_arrays(head.pop("arrays", [])):
        try:
            data = await reader.readexactly(nbytes)
        except asyncio.IncompleteReadError as error:
            raise ProtocolError("The stream ended inside a frame.") from error
        arrays[name] = Array(dtype, shape, data)
    return Frame(head, arrays)


def _announced_arrays(announced: object) -> list[tuple[str, str, tuple[int, ...], int]]:
    if not isinstance(announced, list) or len(announced) > MAX_ARRAYS:
        raise ProtocolError("The arrays of a frame are not a short list.")
    parsed = []
    for entry in announced:
        if not isinstance(entry, dict):
            raise ProtocolError("An array of a frame is not described by an object.")
        name, dtype, nbytes = entry.get("name"), entry.get("dtype"), entry.get("nbytes")
        shape = entry.get("shape")
        if not isinstance(name, str) or dtype not in ITEM_BYTES or not isinstance(shape, list):
            raise ProtocolError(f"An array of a frame has no usable name, dtype or shape: {entry}")
        if type(nbytes) is not int or not all(type(n) is int and n >= 0 for n in shape):
            raise ProtocolError(f"The array {name} has a shape or length that is no count.")
        if nbytes > MAX_ARRAY_BYTES or nbytes != math.prod(shape) * ITEM_BYTES[dtype]:
            raise ProtocolError(f"The array {name} says {nbytes:,} bytes for shape {shape}.")
        parsed.append((name, dtype, tuple(shape), nbytes))
    return parsed


def _parse_object(line: bytes) -> dict[str, Any]:
    try:
        head = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"A line of {len(line):,} bytes is not JSON: {error}") from error
    if not isinstance(head, dict):
        raise ProtocolError("A line is JSON, and not an object.")
    return head


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    """A line of any length up to MAX_HEAD_BYTES; without its newline only at the end.

    StreamReader.readline refuses lines over its buffer limit, and the index of a large
    model is longer than any buffer worth reserving, so a long line is taken in pieces.
    """
    pieces: list[bytes] = []
    length = 0
    while True:
        try:
            piece = await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as end:
            return b"".join([*pieces, end.partial])
        except asyncio.LimitOverrunError as long:
            piece = await reader.readexactly(long.consumed)
        pieces.append(piece)
        length += len(piece)
        if length > MAX_HEAD_BYTES:
            raise ProtocolError(f"A line runs past {MAX_HEAD_BYTES:,} bytes.")
        if piece.endswith(b"\n"):
            return b"".join(pieces)
