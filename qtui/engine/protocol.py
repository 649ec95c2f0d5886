"""The protocol between the screen and the engine.

A request is one line of JSON. An event is one line of JSON, followed by the raw bytes of
the arrays that the line announces, in the announced order:

    {"event": "result", "id": 7, "data": {...}, ...,
     "arrays": [{"name": "cells", "dtype": "<f4", "shape": [40, 120], "nbytes": 19200}]}\\n
    <19200 bytes>

Requests, events and answers are dataclasses, which `qtui_core.codec` turns into JSON and back.
Fields of an answer that are an Array follow as bytes. NaN and infinities are written as `NaN`,
`Infinity` and `-Infinity`, which Python reads although JSON has no such words. Only the standard
library is imported here, so that the screen reads arrays without numpy.
"""

from __future__ import annotations

import json
import math
from dataclasses import field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from qtui_core.codec import CodecError, from_plain, to_line
from qtui_core.dataclass import dataclass
from qtui_core.errors import QtuiError

if TYPE_CHECKING:
    import asyncio

Head = TypeVar("Head")

# No valid frame reaches these limits; they keep a corrupted length from allocating all memory. The
# index of a model of 100,000 tensors is about 15 MB of JSON, and an array is a picture of at most a
# few hundred thousand cells.
MAX_HEAD_BYTES = 128 << 20
MAX_ARRAY_BYTES = 64 << 20
MAX_ARRAYS = 64
MAX_REQUEST_BYTES = 1 << 20

# numpy's name of a dtype -> its letter for `memoryview.cast`. Little-endian, as is every machine
# that runs torch.
CAST_LETTERS: dict[str, Any] = {
    "|b1": "?", "|u1": "B", "|i1": "b", "<u2": "H", "<i2": "h", "<u4": "I", "<i4": "i",
    "<u8": "Q", "<i8": "q", "<f4": "f", "<f8": "d",
}  # fmt: skip
ITEM_BYTES = {name: int(name[2:]) for name in CAST_LETTERS}


class ProtocolError(QtuiError):
    """The received bytes are not a frame."""


@dataclass(frozen=True)
class Array:
    """An array without numpy: its bytes in C order, with dtype and shape."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes = field(repr=False)

    def view(self) -> memoryview:
        """A flat typed view of the elements: `view()[row * columns + column]`."""
        return memoryview(self.data).cast(CAST_LETTERS[self.dtype])

    def tolist(self) -> list[Any]:
        """The elements as a flat list of Python numbers."""
        return self.view().tolist()


@dataclass(frozen=True)
class Request:
    """A request: the name of an operation, and its parameters."""

    id: int
    method: str
    params: Any = field(default_factory=dict)


@dataclass(frozen=True)
class ArrayHead:
    """The name, dtype, shape and size of an array whose bytes follow the line."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class Event:
    """A message of the engine.

    Attributes:
        event: "ready" or "alive"; about the request `id` also "progress", "result", "error" or
            "cancelled".
        data: the answer, or a part of it as progress: a dataclass in the engine, JSON after
            reading.
        fraction: the progress of the request, 0 to 1.
        message, exit_code: of an error.
        arrays: the arrays whose bytes follow the line.
    """

    event: str
    id: int | None = None
    data: Any = None
    fraction: float = 0.0
    message: str = ""
    exit_code: int = 1
    arrays: tuple[ArrayHead, ...] = ()


@dataclass(frozen=True)
class Frame:
    """An event with its arrays."""

    head: Event
    arrays: dict[str, Array]


def encode_request(request: Request) -> bytes:
    """A request as a line. Raises ProtocolError if it is longer than MAX_REQUEST_BYTES."""
    line = to_line(request).encode() + b"\n"
    if len(line) > MAX_REQUEST_BYTES:
        raise ProtocolError(f"A request of {len(line):,} bytes is over {MAX_REQUEST_BYTES:,}.")
    return line


def parse_request(line: bytes) -> Request:
    """The request in a line. Raises ProtocolError if it is not one."""
    request = _parse(Request, line)
    if not isinstance(request.params, dict):
        raise ProtocolError("The `params` of a request are an object.")
    return request


def encode_event(event: Event) -> bytes:
    """An event with the arrays of its answer, as the bytes of one write."""
    answer, arrays = event.data, {}
    if is_dataclass(answer) and not isinstance(answer, type):
        named = {each.name: getattr(answer, each.name) for each in fields(answer)}
        arrays = {name: value for name, value in named.items() if isinstance(value, Array)}
        if arrays:
            rest = {name: value for name, value in named.items() if name not in arrays}
            heads = tuple(
                ArrayHead(name, array.dtype, array.shape, len(array.data))
                for name, array in arrays.items()
            )
            event = replace(event, data=rest, arrays=heads)
    return b"".join([to_line(event).encode(), b"\n", *(each.data for each in arrays.values())])


async def read_event(reader: asyncio.StreamReader) -> Frame | None:
    """The next event, or None if the stream ends between two frames.

    Raises ProtocolError for a line that is not an event, an array that is of no answer or whose
    length does not match its shape, and a stream that ends inside a frame.
    """
    from asyncio import IncompleteReadError  # only here, as the child does without asyncio

    line = await _read_line(reader)
    if not line:
        return None
    if not line.endswith(b"\n"):
        raise ProtocolError("The stream ended inside a frame.")
    head = _parse(Event, line)
    if len(head.arrays) > MAX_ARRAYS:
        raise ProtocolError(f"A frame has {len(head.arrays):,} arrays, over {MAX_ARRAYS}.")
    if head.arrays and not isinstance(head.data, dict | None):
        raise ProtocolError("A frame has arrays and no answer whose fields they are.")
    for array in head.arrays:
        _check(array)
    arrays: dict[str, Array] = {}
    for array in head.arrays:
        try:
            data = await reader.readexactly(array.nbytes)
        except IncompleteReadError as error:
            raise ProtocolError("The stream ended inside a frame.") from error
        arrays[array.name] = Array(array.dtype, array.shape, data)
    return Frame(head, arrays)


def _check(array: ArrayHead) -> None:
    name, dtype, shape, nbytes = array.name, array.dtype, array.shape, array.nbytes
    if dtype not in ITEM_BYTES or not all(size >= 0 for size in shape):
        raise ProtocolError(f"The array {name} has no usable dtype or shape: {dtype:.20} {shape}.")
    if nbytes > MAX_ARRAY_BYTES or nbytes != math.prod(shape) * ITEM_BYTES[dtype]:
        raise ProtocolError(f"The array {name} says {nbytes:,} bytes for shape {shape}.")


def _parse(kind: type[Head], line: bytes) -> Head:
    try:
        return from_plain(kind, json.loads(line))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"A line of {len(line):,} bytes is not JSON: {error}") from error
    except CodecError as error:
        raise ProtocolError(str(error)) from error


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    """A line of up to MAX_HEAD_BYTES. Only the last line of a stream may lack its newline.

    A line is read in pieces, because StreamReader.readline refuses lines over its buffer limit, and
    the index of a large model is longer than a reasonable buffer.
    """
    from asyncio import IncompleteReadError, LimitOverrunError

    pieces: list[bytes] = []
    length = 0
    while True:
        try:
            piece = await reader.readuntil(b"\n")
        except IncompleteReadError as end:
            return b"".join([*pieces, end.partial])
        except LimitOverrunError as long:
            piece = await reader.readexactly(long.consumed)
        pieces.append(piece)
        length += len(piece)
        if length > MAX_HEAD_BYTES:
            raise ProtocolError(f"A line runs past {MAX_HEAD_BYTES:,} bytes.")
        if piece.endswith(b"\n"):
            return b"".join(pieces)
