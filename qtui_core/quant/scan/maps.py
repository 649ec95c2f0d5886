"""Maps of a tensor: where large values, errors or scales lie, pooled to a grid that is small enough
to draw."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise
from typing import Unpack

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.quant.scan.map_kinds import MapKind, check_kind, quantity
from qtui_core.quant.scan.pooling import Grid, Int64, PooledPart, Pooling, Window
from qtui_core.quant.scan.scan import SchemeReducer, scan
from qtui_core.quant.segments.elements import (
    SEGMENT,
    Elements,
    Float32,
    ModelExtent,
    Segment,
    TensorLike,
    elements_of,
)
from qtui_core.quant.segments.parallel import Scratch, Watch
from qtui_core.quant.segments.process import Plan
from qtui_core.schemes.scheme import Scheme

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


class MapScan(SchemeReducer[list[PooledPart]]):
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

    def take(self, segment: Segment, scratch: Scratch) -> list[PooledPart]:
        assert isinstance(segment, _Piece)
        first, last = segment.first, segment.last
        values = quantity(self._kind, self.plans, segment.parts, first, last, scratch)
        return self._grid.pool(values, first, scratch)

    def add(self, part: list[PooledPart]) -> None:
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
    **watch: Unpack[Watch],
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
        model_absmax, watch: as for `measure`.

    Raises:
        UsageError: the window is outside the tensor, the schemes have no such quantity, or
            `quantize` refuses the input.
        Cancelled: `cancelled()` was true.
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
    found = MapScan(kind, schemes, grid)
    known = None if plans is None else dict(zip(schemes, plans, strict=True))
    scan(elements, [found], model_absmax=model_absmax, plans=known, **watch)
    return found.result()


def error_map(
    x: TensorLike,
    scheme: Scheme,
    rows_out: int,
    columns_out: int,
    *,
    model_absmax: ModelExtent | None = None,
    **watch: Unpack[Watch],
) -> TensorMap:
    """The largest |error| of a scheme in each cell, over the whole tensor. Arguments and errors are
    those of `tensor_map`."""
    return tensor_map(
        x,
        MapKind.ERROR,
        (scheme,),
        rows_out,
        columns_out,
        model_absmax=model_absmax,
        **watch,
    )


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
