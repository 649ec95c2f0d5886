"""Which consecutive elements share a scale, given the shape of the tensor.

Every granularity is one of five layouts of the flattened tensor, so the kernels have five cases.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from qtui_core.dataclass import dataclass
from qtui_core.schemes.granularity import (
    Granularity,
    PerBlock,
    PerColumn,
    PerGroup,
    PerModel,
    PerRow,
    PerTensor,
    PerTile,
    PerToken,
)


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """`[rows, columns]` of a tensor, as the docstring of `granularity` defines them."""
    if len(shape) == 3:
        return shape[0] * shape[1], shape[2]
    if len(shape) >= 2:
        return shape[0], math.prod(shape[1:])
    return 1, math.prod(shape)


@dataclass(frozen=True)
class Whole:
    """One scale for all elements."""


@dataclass(frozen=True)
class Runs:
    """One scale for each `size` consecutive elements of the flattened tensor; the last run
    may be short."""

    size: int


@dataclass(frozen=True)
class RaggedRows:
    """Rows of `columns` elements, each cut into runs of `size`, which does not divide it: every row
    ends in a short run."""

    columns: int
    size: int


@dataclass(frozen=True)
class Columns:
    """One scale for each of `columns` columns."""

    columns: int


@dataclass(frozen=True)
class Tiles:
    """One scale for each tile of `height` by `width` elements of rows of `columns`; the tiles at
    the right and the lower edge may be smaller."""

    columns: int
    height: int
    width: int


Layout = Whole | Runs | RaggedRows | Columns | Tiles


def layout_of(granularity: Granularity | None, shape: tuple[int, ...]) -> Layout:
    """The layout of a tensor of this shape; Whole if there is no scale."""
    rows, columns = matrix_shape(shape)
    count = rows * columns
    match granularity:
        case PerColumn() if rows > 1:
            return Columns(columns)
        case PerColumn():
            return Runs(1)
        case PerGroup(size) if rows > 1 and size < columns and columns % size:
            return RaggedRows(columns, size)
        case PerGroup(size):
            run = min(size, columns)
        case PerRow():
            run = columns
        case PerToken():
            run = _token_length(shape)
        case PerTile(height, width) if min(height, rows) == 1:
            return layout_of(PerGroup(width), (rows, columns))
        case PerTile(height, width) if rows and width < columns:
            return Tiles(columns, min(height, rows), width)
        case PerTile(height, _):
            run = height * columns
        case PerBlock(size):
            # A single block keeps its own layout, as its kernels recognise a short block by its
            # length.
            return Runs(size) if size <= count else Whole()
        case _:
            return Whole()
    return Runs(run) if 0 < run < count else Whole()


def scale_shape(granularity: Granularity | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the array of scales, as the docstrings of the granularities give it."""
    rows, columns = matrix_shape(shape)
    if granularity is None or rows * columns == 0:
        return (0,)
    match granularity:
        case PerModel() | PerTensor():
            return (1,)
        case PerRow():
            return (rows, 1)
        case PerToken():
            return (rows * columns // _token_length(shape), 1)
        case PerTile(height, width):
            return (-(-rows // height), -(-columns // width))
        case PerColumn():
            return (1, columns)
        case PerGroup(size):
            return (rows, -(-columns // size))
        case PerBlock(size):
            return (-(-rows * columns // size),)


def scale_index(
    granularity: Granularity | None, shape: tuple[int, ...], row: int, column: int
) -> int | None:
    """The index of the scale of element [row, column] in the flattened scales; None without
    scales."""
    columns = matrix_shape(shape)[1]
    match granularity:
        case None:
            return None
        case PerModel() | PerTensor():
            return 0
        case PerRow():
            return row
        case PerToken():
            return (row * columns + column) // _token_length(shape)
        case PerTile(height, width):
            return row // height * -(-columns // width) + column // width
        case PerColumn():
            return column
        case PerGroup(size):
            return row * -(-columns // size) + column // size
        case PerBlock(size):
            return (row * columns + column) // size


def run_lengths(granularity: Granularity | None, shape: tuple[int, ...]) -> dict[int, int]:
    """How many groups there are of each length: `{64: 1000, 12: 1}`. Empty without scales."""
    rows, columns = matrix_shape(shape)
    count = rows * columns
    if granularity is None or count == 0:
        return {}
    match layout_of(granularity, shape):
        case Columns(width):
            return {rows: width}
        case Runs(size):
            return _cut(count, size, 1)
        case RaggedRows(width, size):
            return _cut(width, size, rows)
        case Tiles(width, tile_height, tile_width):
            lengths: Counter[int] = Counter()
            for tall, times in _cut(rows, tile_height, 1).items():
                for wide, many in _cut(width, tile_width, 1).items():
                    lengths[tall * wide] += times * many
            return dict(lengths)
        case Whole():
            return {count: 1}


def _token_length(shape: tuple[int, ...]) -> int:
    """Elements of a token: the last dimension, whatever the other dimensions are."""
    return shape[-1] if shape else 1


def _cut(length: int, size: int, times: int) -> dict[int, int]:
    full, rest = divmod(length, size)
    lengths = {size: full * times} if full else {}
    if rest:
        lengths[rest] = times
    return lengths


def rectangles(start: int, size: int, columns: int) -> Iterator[tuple[int, int, int, int]]:
    """The consecutive elements [start, start + size) of a matrix as at most three rectangles
    (first row, last row + 1, first column, last column + 1)."""
    stop = start + size
    row, column = divmod(start, columns)
    if column:
        end = min(columns, column + size)
        yield row, row + 1, column, end
        start += end - column
    if stop - start >= columns:
        first, last = start // columns, stop // columns
        yield first, last, 0, columns
        start = last * columns
    if start < stop:
        yield start // columns, start // columns + 1, 0, stop - start
