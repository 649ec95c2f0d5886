"""Maps of a tensor: where large values, errors or scales lie, pooled to a grid that is small enough
to draw."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.formats import FloatFormat, get_format
from qtui_core.job import IDLE, Job
from qtui_core.quant.codebook import unpack_nibbles
from qtui_core.quant.elements import (
    SEGMENT,
    Elements,
    ModelExtent,
    Segment,
    TensorLike,
    elements_of,
)
from qtui_core.quant.layout import Float32, Float64, Int64, group_views, rectangles
from qtui_core.quant.plan import Plan, SchemeReducer, encode, prepare, round_trip, scan
from qtui_core.schemes.scheme import Family, Scheme


class MapKind(StrEnum):
    """The quantity that a map shows. It is NaN for an element that has no such quantity.

    ERROR: |dequantized x - x|; 0 for an element that is not finite.
    SIGNED: dequantized x - x, positive where the scheme made x larger.
    VALUE: x.
    SCALE: the scale of the element's group, as it is read back from the stored tensor; NaN in
        columns that are kept in 16 bits.
    CODE: the integer code. In a format with a sign bit it is the other bits, with that sign. NaN in
        columns that are kept in 16 bits.
    DIFFERENCE: |error| under the first scheme minus |error| under the second.
    """

    ERROR = "error"
    SIGNED = "signed"
    VALUE = "value"
    SCALE = "scale"
    CODE = "code"
    DIFFERENCE = "difference"

    @property
    def schemes(self) -> int:
        """How many schemes the quantity depends on."""
        return {MapKind.VALUE: 0, MapKind.DIFFERENCE: 2}.get(self, 1)


def check_kind(kind: MapKind, schemes: Sequence[Scheme]) -> None:
    """Raises UsageError if there is no map of this kind under these schemes."""
    if len(schemes) != kind.schemes:
        raise UsageError(f"A map of the {kind} takes {kind.schemes} schemes; got {len(schemes)}.")
    if kind is MapKind.SCALE and schemes[0].family is Family.CAST:
        raise UsageError(
            f"{schemes[0].format} is a cast without a scale, so there is no map of scales."
        )


def quantity(
    kind: MapKind, plans: Sequence[Plan], segments: Sequence[Segment], first: int, last: int
) -> Float32:
    """The quantity of elements [first, last) of the flattened tensor, float32 `[last - first]`,
    which may be the array of the tensor: read only.

    There is one segment for each plan. It contains these elements and is cut as the plan requires.
    VALUE has one segment and no plan.
    """
    make = {MapKind.SCALE: _scales, MapKind.CODE: _codes}.get(kind, _errors)
    parts = [make(plan, segment) for plan, segment in zip(plans, segments, strict=False)]
    parts = parts or [segments[0].values]
    one, *other = (
        values[first - segment.start : last - segment.start]
        for values, segment in zip(parts, segments, strict=True)
    )
    if kind in (MapKind.ERROR, MapKind.DIFFERENCE):
        one = np.abs(one)
    return one - np.abs(other[0]) if other else one


def _errors(plan: Plan, segment: Segment) -> Float32:
    prepared = prepare(plan, segment)
    error = round_trip(plan, prepared)
    error -= prepared.values
    if prepared.nonfinite is not None:
        error[prepared.nonfinite] = 0
    return error


def _scales(plan: Plan, segment: Segment) -> Float32:
    scales = prepare(plan, segment).decoding_scales.scale
    out = np.empty(segment.size, np.float32)
    for (view,), (scale,) in group_views(plan.layout, (out,), (scales,)):
        view[...] = scale
    if plan.decomposition is not None:
        plan.decomposition.fill(out, segment.start, np.nan)
    return out


def _codes(plan: Plan, segment: Segment) -> Float32:
    codes = np.empty(plan.code_count(segment.size), plan.coder.code_dtype)
    encode(plan, prepare(plan, segment), codes)
    if plan.packed:
        codes = unpack_nibbles(codes, segment.size)
    out = codes.astype(np.float32)
    element = None if plan.scheme.element is None else get_format(plan.scheme.element)
    if isinstance(element, FloatFormat):
        magnitude = (codes & codes.dtype.type(element.sign_bit - 1)).astype(np.float32)
        out = np.where(codes & codes.dtype.type(element.sign_bit), -magnitude, magnitude)
    if plan.decomposition is not None:
        plan.decomposition.fill(out, segment.start, np.nan)
    return out


#: All bits of a float32 except the sign. Read as integers, magnitudes have the same order as the
#: floats, with NaN above infinity.
MAGNITUDE = np.uint32(0x7FFF_FFFF)


class Pooling(StrEnum):
    """How the elements of a cell become one number. A single NaN makes the cell NaN, except under
    NEAREST.

    MAX: the largest magnitude, with its sign, so that no single spike is lost.
    MEAN: the mean.
    RMS: the root of the mean square. On a map of errors its square is the cell's part of the MSE.
    NEAREST: the element in the middle of the cell.
    """

    MAX = "max"
    MEAN = "mean"
    RMS = "rms"
    NEAREST = "nearest"


@dataclass(frozen=True)
class Window:
    """Rows [row_start, row_stop) and columns [column_start, column_stop) of a tensor seen as a
    matrix."""

    row_start: int
    row_stop: int
    column_start: int
    column_stop: int

    @property
    def size(self) -> tuple[int, int]:
        return self.row_stop - self.row_start, self.column_stop - self.column_start


#: The contribution of a rectangle of elements to the cells that it overlaps: where these cells are,
#: then arrays of them: the bits of the largest magnitude, the value that has it, the row and column
#: of that element, and the sum that the mean is computed from, or None.
Pooled = tuple[tuple[slice, slice], Int64, Float32, Int64, Int64, Float64 | None]


class Grid:
    """A grid of cells over a window of a matrix with `width` columns. `pool` may run in any thread;
    `add` takes its results in the order of the tensor."""

    def __init__(
        self, window: Window, width: int, rows_out: int, columns_out: int, pooling: Pooling
    ) -> None:
        self.window, self.width, self.pooling = window, width, pooling
        height, across = window.size
        self.row_edges = window.row_start + _edges(height, rows_out)
        self.column_edges = window.column_start + _edges(across, columns_out)
        size = len(self.row_edges) - 1, len(self.column_edges) - 1
        self._bits = np.full(size, -1, np.int64)
        self._values = np.zeros(size, np.float32)
        self._rows, self._columns = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._sums = np.zeros(size)

    def pool(self, values: Float32, start: int) -> list[Pooled]:
        """The contributions of the elements that begin at `start` of the flattened matrix."""
        parts = []
        low, high = self.window.column_start, self.window.column_stop
        pooled = self._middles if self.pooling is Pooling.NEAREST else self._peaks
        for rows, across, (whole,) in rectangles(start, self.width, values):
            begin, end = max(across.start, low), min(across.stop, high)
            if begin < end:
                tile = whole[:, begin - across.start : end - across.start]
                parts.append(pooled(tile, rows.start, begin))
        return parts

    def _peaks(self, tile: Float32, first: int, left: int) -> Pooled:
        height, width = tile.shape
        rows = _bins(self.row_edges, first, first + height)
        columns = _bins(self.column_edges, left, left + width)
        row_starts = np.maximum(self.row_edges[rows] - first, 0)
        column_starts = np.maximum(self.column_edges[columns] - left, 0)

        def reduced(which: np.ufunc, of: npt.NDArray[Any]) -> npt.NDArray[Any]:
            by_rows = which.reduceat(of, row_starts, axis=0)
            cells: npt.NDArray[Any] = which.reduceat(by_rows, column_starts, axis=1)
            return cells

        # Magnitude and place in one integer. Its maximum is the largest magnitude, at the first
        # place that has it.
        key = (tile.view(np.uint32) & MAGNITUDE).astype(np.uint64)
        key <<= np.uint64(32)
        key |= np.arange(tile.size, dtype=np.uint32)[::-1].reshape(tile.shape)
        best = reduced(np.maximum, key)
        place = tile.size - 1 - (best & np.uint64(0xFFFF_FFFF)).astype(np.int64)
        row, column = place // width, place % width
        sums = None
        if self.pooling is Pooling.MEAN:
            sums = reduced(np.add, tile.astype(np.float64))
        elif self.pooling is Pooling.RMS:
            sums = reduced(np.add, np.square(tile, dtype=np.float64))
        bits = (best >> np.uint64(32)).astype(np.int64)
        return (rows, columns), bits, tile[row, column], row + first, column + left, sums

    def _middles(self, tile: Float32, first: int, left: int) -> Pooled:
        rows, row = _inside(_middle(self.row_edges), first, first + tile.shape[0])
        columns, column = _inside(_middle(self.column_edges), left, left + tile.shape[1])
        values = tile[np.ix_(row - first, column - left)]
        row, column = np.broadcast_arrays(row[:, None], column[None, :])
        return (rows, columns), np.zeros(values.shape, np.int64), values, row, column, None

    def add(self, parts: list[Pooled]) -> None:
        """Adds the contributions of the next elements."""
        cells = self._values, self._rows, self._columns, self._bits
        for at, bits, values, rows, columns, sums in parts:
            larger = bits > self._bits[at]
            held: Any
            part: Any
            for held, part in zip(cells, (values, rows, columns, bits), strict=True):
                held[at] = np.where(larger, part, held[at])
            if sums is not None:
                self._sums[at] += sums

    def finished(self) -> tuple[Float32, Int64, Int64]:
        """The cells, and the row and column of the element that each cell points at."""
        if self.pooling not in (Pooling.MEAN, Pooling.RMS):
            return self._values, self._rows, self._columns
        counts = np.multiply.outer(np.diff(self.row_edges), np.diff(self.column_edges))
        with np.errstate(over="ignore", invalid="ignore"):
            means = self._sums / np.maximum(counts, 1)
            means = np.sqrt(means) if self.pooling is Pooling.RMS else means
            return means.astype(np.float32), self._rows, self._columns


def _edges(length: int, wanted: int) -> Int64:
    """The boundaries that divide `length` into `wanted` nearly equal parts, none of them empty."""
    parts = max(0, min(length, wanted))
    return np.arange(parts + 1, dtype=np.int64) * length // max(1, parts)


def _bins(edges: Int64, first: int, last: int) -> slice:
    """The parts that overlap [first, last)."""
    low = int(np.searchsorted(edges, first, side="right")) - 1
    return slice(low, int(np.searchsorted(edges, last, side="left")))


def _middle(edges: Int64) -> Int64:
    return (edges[:-1] + edges[1:]) // 2


def _inside(places: Int64, first: int, last: int) -> tuple[slice, Int64]:
    """Which of the ascending places lie in [first, last), as a slice, and those places."""
    low, high = (int(np.searchsorted(places, end)) for end in (first, last))
    return slice(low, high), places[low:high]


#: Two plans are read in segments of their common multiple if that is at most this. Beyond it, the
#: ends of segments are computed twice instead, so that memory stays bounded.
LARGEST_COMMON_MULTIPLE = 4 * SEGMENT


@dataclass(frozen=True, eq=False)
class TensorMap:
    """A grid over a window of a tensor.

    Attributes:
        cells: float32 `[r, c]`. There are at most as many cells as were requested, and never more
            than the window has rows and columns. NaN if no element of the cell has the quantity.
        rows, columns: int64 `[r, c]`, the element of the tensor (seen as a matrix) that a cell
            points at. Under NEAREST it is the one in the middle of the cell, otherwise the first
            one of the largest magnitude.
        row_edges, column_edges: int64 `[r + 1]`, `[c + 1]`. Cell [i, j] covers the rows
            row_edges[i] to row_edges[i + 1] - 1 of the tensor, and the columns likewise.
    """

    kind: MapKind
    pooling: Pooling
    cells: Float32
    rows: Int64
    columns: Int64
    row_edges: Int64
    column_edges: Int64


class MapScan(SchemeReducer[list[Pooled]]):
    """Computes a map over the window of `grid`. It reads only the rows of the window and the groups
    that overlap it, so it shares its reading with no other reducer."""

    def __init__(self, kind: MapKind, schemes: Sequence[Scheme], grid: Grid) -> None:
        super().__init__(*schemes)
        self._kind, self._grid = kind, grid

    def segments(self, elements: Elements) -> Iterator[Segment]:
        return _pieces(elements, self._grid.window, self.plans)

    def cut(self, elements: Elements) -> Hashable:
        return id(self)

    def reads(self, elements: Elements) -> int:
        return self._grid.window.size[0] * elements.matrix[1]

    def begin(self, elements: Elements) -> None:
        pass

    def take(self, segment: Segment) -> list[Pooled]:
        assert isinstance(segment, _Piece)
        first, last = segment.first, segment.last
        values = quantity(self._kind, self.plans, segment.parts, first, last)
        return self._grid.pool(values, first)

    def add(self, part: list[Pooled]) -> None:
        self._grid.add(part)

    def result(self) -> TensorMap:
        grid = self._grid
        edges = grid.row_edges, grid.column_edges
        return TensorMap(self._kind, grid.pooling, *grid.finished(), *edges)


def tensor_map(
    x: TensorLike,
    kind: MapKind,
    schemes: Sequence[Scheme],
    rows_out: int,
    columns_out: int,
    *,
    window: Window | None = None,
    pooling: Pooling | None = None,
    plans: Sequence[Plan] | None = None,
    model_absmax: ModelExtent | None = None,
    job: Job = IDLE,
) -> TensorMap:
    """A map of the elements of a window, pooled to at most `rows_out` by `columns_out` cells.

    Args:
        x: what `quantize` takes. The rows of the window, with the groups that overlap it, are read
            once. Before that the whole tensor is read if a scheme requires it, for example for one
            scale of the whole tensor.
        kind: the quantity to show.
        schemes: as many as the kind depends on (`kind.schemes`).
        window: None is the whole tensor.
        pooling: None is MAX, or NEAREST for codes, which allow nothing else.
        plans: the plans of the schemes for this tensor, as `make_plan` returns them; then nothing
            is read before the window.
        model_absmax, job: as for `measure`.

    Raises:
        UsageError: the window is outside the tensor, the schemes have no such quantity, or
            `quantize` refuses the input.
        Cancelled: the job was cancelled.
    """
    check_kind(kind, schemes)
    pooling = pooling or (Pooling.NEAREST if kind is MapKind.CODE else Pooling.MAX)
    if kind is MapKind.CODE and pooling is not Pooling.NEAREST:
        raise UsageError(
            f"Codes are names of levels, and names have no {pooling}: a map of codes shows the "
            f"element in the middle of each cell (nearest)."
        )
    elements = elements_of(x)
    grid = Grid(_checked(window, elements), elements.matrix[1], rows_out, columns_out, pooling)
    reducer = MapScan(kind, schemes, grid)
    known = None if plans is None else dict(zip(schemes, plans, strict=True))
    scan(elements, [reducer], model_absmax=model_absmax, plans=known, job=job)
    return reducer.result()


def _checked(window: Window | None, elements: Elements) -> Window:
    rows, columns = elements.matrix
    if window is None:
        return Window(0, rows, 0, columns)
    inside = (
        0 <= window.row_start < window.row_stop <= rows
        and 0 <= window.column_start < window.column_stop <= columns
    )
    if not inside:
        raise UsageError(
            f"Rows {window.row_start} to {window.row_stop} and columns {window.column_start} to "
            f"{window.column_stop} (the last not included) are no part of a tensor of "
            f"{rows} x {columns}."
        )
    return window


@dataclass(frozen=True)
class _Piece(Segment):
    """Elements [first, last) of the flattened tensor. `bounds` has, for each plan, the range of
    elements around them that the plan requires."""

    first: int
    last: int
    bounds: tuple[tuple[int, int], ...]

    @property
    def parts(self) -> list[Segment]:
        """The segment of each plan."""
        return [
            Segment(start, self.raw[start - self.start : stop - self.start], self.convert)
            for start, stop in self.bounds
        ]


def _pieces(elements: Elements, window: Window, plans: tuple[Plan, ...]) -> Iterator[_Piece]:
    """The rows of the window in pieces of about SEGMENT elements."""
    columns = elements.matrix[1]
    if 0 in window.size:
        return
    start, stop = window.row_start * columns, window.row_stop * columns
    multiples = [plan.multiple for plan in plans] or [1]
    common = math.lcm(*multiples)
    unit = common if common <= LARGEST_COMMON_MULTIPLE else max(multiples)
    step = max(1, SEGMENT // unit) * unit
    cuts = [start, *range((start // step + 1) * step, stop, step), stop]
    places = []
    for first, last in pairwise(cuts):
        bounds = tuple(
            (first // m * m, min(elements.count, -(-last // m) * m)) for m in multiples
        )  # fmt: skip
        places.append((first, last, bounds))
    ranges = elements.ranges((min(b)[0], max(end for _, end in b)) for *_, b in places)
    for (first, last, bounds), segment in zip(places, ranges, strict=True):
        yield _Piece(segment.start, segment.raw, segment.convert, first, last, bounds)
