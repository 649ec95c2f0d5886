"""A tensor with some of its elements replaced, without a copy of the tensor.

Everything here gives rows on request, like a reader of a file, so that a tensor with an injected
outlier can be quantized, measured and drawn in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qtui_core.errors import UsageError
from qtui_core.quant.segments.elements import Float32, RowSource, TensorLike, elements_of
from qtui_core.quant.segments.layout import matrix_shape


class Injected:
    """`source` with element [row, column] of its matrix set to `value`, or every element of the
    column if `row` is None. A vector has only row 0.

    Attributes:
        shape: of the source.
        key: identifies the source and what was injected.

    Raises UsageError if there is no such element, or `value` is no float32.
    """

    def __init__(self, source: TensorLike, row: int | None, column: int, value: float) -> None:
        self._source = row_source(source)
        self.shape = self._source.shape
        check_place(self.shape, row, column)
        with np.errstate(over="ignore", under="ignore"):
            self.value = float(np.float32(value))
        if math.isfinite(value) and not math.isfinite(self.value):
            raise UsageError(
                f"An outlier of {value:g} does not fit: tensors are read as float32, up to "
                f"{np.finfo(np.float32).max:.3g}."
            )
        self.row, self.column = row, column
        place = f"column {column}" if row is None else f"{row},{column}"
        self.key = f"{getattr(source, 'key', '')} with {self.value!r} at {place}"

    def rows(self, start: int, stop: int) -> Float32:
        """Rows [start, stop), float32; the elements [start, stop) of a vector."""
        values = self._source.rows(start, stop)
        vector = len(self.shape) < 2
        place = self.column if vector else self.row
        if place is not None and self.shape and not start <= place < stop:
            return np.asarray(values, np.float32)
        replaced = np.array(values, np.float32)
        at = slice(None) if place is None else slice(place - start, place - start + 1)
        if vector:
            replaced.reshape(-1)[at] = self.value
        else:
            replaced.reshape(stop - start, -1)[at, self.column] = self.value
        return replaced


class Without:
    """`source` with NaN in some columns of its matrix: what remains to be quantized when those
    columns are kept in 16 bits. Nonfinite elements are in no scale and no error; zeros would lower
    a mean magnitude and widen a range that does not contain them."""

    def __init__(self, source: TensorLike, columns: Sequence[int]) -> None:
        self._source = row_source(source)
        self.shape = self._source.shape
        for column in columns:
            check_place(self.shape, None, column)
        self._columns = np.array(columns, np.int64)

    def rows(self, start: int, stop: int) -> Float32:
        """As `Injected.rows`."""
        replaced = np.array(self._source.rows(start, stop), np.float32)
        if len(self.shape) >= 2:
            replaced.reshape(stop - start, -1)[:, self._columns] = np.nan
        elif self.shape:
            inside = self._columns[(self._columns >= start) & (self._columns < stop)]
            replaced.reshape(-1)[inside - start] = np.nan
        elif self._columns.size:
            replaced[...] = np.nan
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
        pieces = [segment.float32() for segment in elements_of(part).segments()]
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
