"""The elements of a tensor as a stream of float32 segments, wherever the tensor is.

A numpy array, a torch tensor (torch is not imported here, the caller has it) and a reader of rows
are all read as consecutive pieces of the flattened tensor. Readers of rows in which some elements
are replaced quantize, measure and draw an injected outlier without a copy of the tensor.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.errors import QtuiError, UsageError
from qtui_core.quant.layout import Float32, matrix_shape

#: The largest magnitude of a model, or its smallest and largest value.
ModelExtent: TypeAlias = float | tuple[float, float]

#: Elements per segment: 2 MB of float32. Smaller segments would stay in the second-level cache, but
#: two threads would lose more time passing the interpreter lock between numpy calls.
SEGMENT = 1 << 19


class RowSource(Protocol):
    """Anything that gives rows on request: `rows(start, stop)` returns float32 `[stop - start,
    columns]` of the tensor seen as a matrix. A shape of one number means a vector, whose rows are
    elements."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]: ...


TensorLike: TypeAlias = "npt.NDArray[Any] | RowSource | Any"


@dataclass(frozen=True)
class Segment:
    """Elements [start, start + size) of the flattened tensor. `raw` is as read; it is converted
    where it is first needed, so that a worker thread does it."""

    start: int
    raw: npt.NDArray[Any]
    convert: Callable[[npt.NDArray[Any]], Float32]

    @property
    def size(self) -> int:
        return self.raw.size

    @cached_property
    def values(self) -> Float32:
        """The elements, `[size]`, contiguous; may share memory with the tensor: read only."""
        return self.convert(self.raw)


@dataclass(frozen=True)
class Elements:
    """A tensor to be streamed, possibly several times."""

    shape: tuple[int, ...]
    _flat: npt.NDArray[Any] | None
    _convert: Callable[[npt.NDArray[Any]], Float32]
    _rows: Callable[[int, int], npt.NDArray[Any]]
    _row_count: int = 0

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def matrix(self) -> tuple[int, int]:
        """(rows, columns) as `matrix_shape` gives them."""
        return matrix_shape(self.shape)

    def segments(self, multiple: int = 1, target: int = SEGMENT) -> Iterator[Segment]:
        """The elements in order, about `target` at a time. The length of every segment but the last
        is a multiple of `multiple`. Rows of a reader larger than `target` are read whole."""
        step = max(multiple, target // multiple * multiple)
        if self._flat is not None:
            for start in range(0, self.count, step):
                yield Segment(start, self._flat[start : start + step], self._convert)
        else:
            yield from self._segments_of_rows(multiple, step)

    def cut(self, multiple: int) -> tuple[int, ...]:
        """A value that is equal for multiples that give the same `segments`."""
        step = max(multiple, SEGMENT // multiple * multiple)
        if self._flat is not None or self.count == 0:
            return (step,)
        columns = self.count // self._row_count
        height = max(1, step // columns)
        if height * columns % multiple:
            return height, step, multiple
        return height, step if height * columns > step else 0, 1

    def ranges(self, bounds: Iterable[tuple[int, int]]) -> Iterator[Segment]:
        """Elements [start, stop) of the flattened tensor for each pair of bounds. Of a reader only
        the rows that contain them are read; rows that two consecutive ranges need are read once."""
        if self._flat is not None:
            for start, stop in bounds:
                yield Segment(start, self._flat[start:stop], self._convert)
            return
        columns = self.count // max(1, self._row_count)
        held_first = held_last = 0
        held = np.empty(0, np.float32)
        for start, stop in bounds:
            first, last = start // columns, -(-stop // columns)
            if not held_first <= first <= last <= held_last:
                held, held_first, held_last = self._read(first, last, columns), first, last
            offset = held_first * columns
            yield Segment(start, held[start - offset : stop - offset], self._convert)

    def _read(self, first: int, last: int, columns: int) -> npt.NDArray[Any]:
        """Rows [first, last) of a reader, flat."""
        piece = self._rows(first, last).reshape(-1)
        if piece.size != (last - first) * columns:
            raise QtuiError(
                f"Rows {first} to {last} of a tensor of shape {self.shape} came with "
                f"{piece.size:,} elements; the file may have changed while it was read."
            )
        return piece

    def _segments_of_rows(self, multiple: int, step: int) -> Iterator[Segment]:
        rows = self._row_count
        if self.count == 0:
            return
        columns = self.count // rows
        height = max(1, step // columns)
        left = np.empty(0, np.float32)
        start = 0
        for row in range(0, rows, height):
            stop = min(rows, row + height)
            piece = self._read(row, stop, columns)
            if left.size:
                piece = np.concatenate([left, piece])
            usable = piece.size if stop == rows else piece.size // multiple * multiple
            for begin in range(0, usable, step):
                part = piece[begin : min(begin + step, usable)]
                yield Segment(start, part, self._convert)
                start += part.size
            left = piece[usable:].copy()


def elements_of(x: TensorLike) -> Elements:
    """The elements of a numpy array (any real dtype), a torch tensor or a row source; Elements are
    returned unchanged.

    Raises UsageError if `x` is none of these or does not consist of real numbers.
    """
    if isinstance(x, Elements):
        return x
    if isinstance(x, np.ma.MaskedArray):
        if np.ma.is_masked(x):
            raise UsageError(
                f"{np.ma.count_masked(x):,} elements of this array are masked, and a masked "
                f"element has no value to quantize: give x.filled(0), or another value."
            )
        x = x.data
    if isinstance(x, np.ndarray):
        return _from_array(x, _to_float32)
    if type(x).__module__.split(".")[0] == "torch" and hasattr(x, "detach"):
        return _from_torch(x)
    if hasattr(x, "rows") and hasattr(x, "shape"):
        source: RowSource = x
        shape = tuple(int(n) for n in source.shape)
        if not shape:
            return Elements(shape, _to_float32(np.asarray(source.rows(0, 1))), _to_float32, _none)
        row_count = shape[0] if len(shape) == 1 else matrix_shape(shape)[0]
        return Elements(shape, None, _to_float32, source.rows, row_count)
    array = np.asarray(x)
    if array.dtype == object:
        raise UsageError(f"A {type(x).__name__} is not a tensor; give an array of numbers.")
    return _from_array(array, _to_float32)


def _from_torch(tensor: Any) -> Elements:
    # Conjugation and negation are flags in torch, which numpy does not have.
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if str(tensor.dtype) == "torch.bfloat16":
        int16 = sys.modules["torch"].int16
        return _from_array(tensor.view(int16).numpy().view(np.uint16), from_bfloat16)
    try:
        return _from_array(tensor.numpy(), _to_float32)
    except TypeError:  # torch's 8-bit floats, for which numpy has no dtype
        return _from_array(tensor.float().numpy(), _to_float32)


def _from_array(array: npt.NDArray[Any], convert: Callable[..., Float32]) -> Elements:
    if array.dtype.kind not in "fiub":
        raise UsageError(f"A tensor of dtype {array.dtype} cannot be quantized; real numbers can.")
    if array.flags.c_contiguous or array.ndim < 2:
        return Elements(array.shape, array.reshape(-1), convert, _none)

    def rows(start: int, stop: int) -> npt.NDArray[Any]:
        return np.ascontiguousarray(array[start:stop])

    return Elements(array.shape, None, convert, rows, array.shape[0])


def _none(start: int, stop: int) -> npt.NDArray[Any]:
    raise AssertionError("a flat tensor is never read by rows")


def _to_float32(raw: npt.NDArray[Any]) -> Float32:
    # A signalling NaN stays a NaN, which the caller counts.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.ascontiguousarray(raw, dtype=np.float32).reshape(-1)


def from_bfloat16(raw: npt.NDArray[Any]) -> Float32:
    """bfloat16 is the upper half of float32."""
    wide = raw.astype(np.uint32)
    wide <<= np.uint32(16)  # faster than a shift that widens too
    return wide.view(np.float32)


class Replaced:
    """`source` with `value` in some columns of its matrix, in one row of it or, if `row` is None,
    in all. A vector has only row 0.

    NaN takes elements out: what is not finite is in no scale and no error. Zeros would lower a mean
    magnitude and widen a range that does not contain them.

    Attributes:
        shape: of the source.
        key: identifies the source and what was replaced.

    Raises UsageError if there is no such element, or `value` is no float32.
    """

    def __init__(
        self, source: TensorLike, row: int | None, columns: Sequence[int], value: float
    ) -> None:
        self._source = row_source(source)
        self.shape = self._source.shape
        for column in columns:
            check_place(self.shape, row, column)
        with np.errstate(over="ignore", under="ignore"):
            self.value = float(np.float32(value))
        if math.isinf(self.value) and not math.isinf(value):
            raise UsageError(
                f"An outlier of {value:g} does not fit: tensors are read as float32, up to "
                f"{np.finfo(np.float32).max:.3g}."
            )
        self.columns = np.array(columns, np.int64)
        self._vector = len(self.shape) < 2
        self._places = self.columns if self._vector or row is None else np.array([row])
        self._everywhere = row is None and not self._vector
        place = f"column {columns}" if row is None else f"{row},{columns}"
        self.key = f"{getattr(source, 'key', '')} with {self.value!r} at {place}"

    def rows(self, start: int, stop: int) -> Float32:
        """Rows [start, stop), float32; the elements [start, stop) of a vector."""
        values = self._source.rows(start, stop)
        inside = (self._places >= start) & (self._places < stop)
        places = slice(None) if self._everywhere else self._places[inside] - start
        if not self._everywhere and not inside.any():
            return np.asarray(values, np.float32)
        replaced = np.array(values, np.float32)
        if self._vector:
            replaced.reshape(-1)[places] = self.value
        else:
            replaced.reshape(stop - start, -1)[places, self.columns] = self.value
        return replaced


class ArrayRows:
    """An array or a torch tensor as a row source."""

    def __init__(self, array: Any) -> None:
        self.shape = tuple(int(size) for size in array.shape)
        vector = len(self.shape) < 2
        self._matrix = array.reshape(-1) if vector else array.reshape(matrix_shape(self.shape))

    def rows(self, start: int, stop: int) -> Float32:
        """Rows [start, stop) of the matrix, float32; the elements of a vector."""
        part = self._matrix[start:stop]
        pieces = [segment.values for segment in elements_of(part).segments()]
        flat = pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, np.float32), *pieces])
        return flat.reshape(tuple(part.shape))


def row_source(x: TensorLike) -> RowSource:
    """What `quantize` accepts, as a source of rows. Raises UsageError as `quantize` does."""
    if hasattr(x, "rows") and hasattr(x, "shape"):
        source: RowSource = x
        return source
    elements_of(x)  # raises with the reason
    return ArrayRows(x if hasattr(x, "reshape") else np.asarray(x))


def check_place(shape: tuple[int, ...], row: int | None, column: int) -> None:
    """Raises UsageError if the matrix of a tensor of `shape` has no such row or column."""
    rows, columns = matrix_shape(shape)
    if (row is None or 0 <= row < rows) and 0 <= column < columns:
        return
    place = f"column {column:,}" if row is None else f"element ({row:,}, {column:,})"
    raise UsageError(
        f"There is no {place} in a tensor of {rows:,} x {columns:,}: rows and columns are "
        f"counted from 0."
    )
