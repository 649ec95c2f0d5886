"""Numbers pooled from a matrix, and the level of each on a ramp."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field

from qtui.screen.widgets.drawing import Ramp
from qtui_core.dataclass import dataclass

# A narrower range would paint rounding noise in the strongest colours.
LEAST_SPAN = 4.0
# The scale starts where all cells but this share lie above it: one cell with almost no error must
# not press all others to the top of the scale.
SHARE_BELOW = 0.01
NOTHING = -1

Window = tuple[int, int, int, int]
"""First row, end of rows, first column, end of columns."""


@dataclass(frozen=True)
class HeatGrid:
    """Numbers pooled from a window of a matrix of `rows` x `columns` elements; of the whole matrix
    if `window` is None.

    `cells` is flat, `grid_rows` x `grid_columns`, NaN for nothing to show. Cell (i, j) covers the
    rows of the window from `i * height // grid_rows` up to the next cell's first row, and columns
    likewise.
    """

    rows: int
    columns: int
    grid_rows: int
    grid_columns: int
    cells: Sequence[float] = field(repr=False)
    window: Window | None = None

    def like(self, other: HeatGrid) -> bool:
        """Whether the two have the same cells, of matrices of the same shape."""

        def shape(grid: HeatGrid) -> tuple[object, ...]:
            return grid.rows, grid.columns, grid.grid_rows, grid.grid_columns, grid.area

        return shape(self) == shape(other)

    @property
    def area(self) -> Window:
        """The window; the whole matrix if there is none."""
        return self.window or (0, self.rows, 0, self.columns)

    @property
    def height(self) -> int:
        return self.area[1] - self.area[0]

    @property
    def width(self) -> int:
        return self.area[3] - self.area[2]

    def first_row(self, grid_row: int) -> int:
        return self.area[0] + grid_row * self.height // self.grid_rows

    def first_column(self, grid_column: int) -> int:
        return self.area[2] + grid_column * self.width // self.grid_columns

    def cell_of(self, row: int, column: int) -> tuple[int, int]:
        """The cell that contains an element, or the nearest cell."""
        down = ((row - self.area[0] + 1) * self.grid_rows - 1) // max(1, self.height)
        across = ((column - self.area[2] + 1) * self.grid_columns - 1) // max(1, self.width)
        return (
            max(0, min(self.grid_rows - 1, down)),
            max(0, min(self.grid_columns - 1, across)),
        )

    def holds_column(self, column: int) -> bool:
        """Whether a column of the matrix is in the window."""
        return self.area[2] <= column < self.area[3]

    @property
    def pool(self) -> tuple[int, int]:
        """The largest number of rows and columns in one cell."""
        return -(-self.height // self.grid_rows), -(-self.width // self.grid_columns)

    @property
    def peak(self) -> tuple[int, int]:
        """The cell with the largest magnitude; of several the first."""
        best, largest = 0, -1.0
        for index, value in enumerate(self.cells):
            if abs(value) > largest:  # False for NaN
                best, largest = index, abs(value)
        return divmod(best, self.grid_columns)


@dataclass(frozen=True)
class HeatScale:
    """How numbers become levels. A signed scale has zero in the middle of its ramp and equal steps
    on both sides; `low` and `high` are then the ends of the magnitudes, otherwise those of the
    numbers. On a logarithmic scale the lowest level is kept for zero, which has no logarithm."""

    low: float
    high: float
    signed: bool = False
    log: bool = True

    @classmethod
    def of(cls, cells: Sequence[float], *, signed: bool = False, log: bool = True) -> HeatScale:
        """The scale that distinguishes these numbers best."""
        if log:
            return cls(*magnitude_range(cells), signed, log)
        finite = [value for value in cells if math.isfinite(value)]
        if signed:
            return cls(0.0, max(map(abs, finite), default=0.0), signed, log)
        return cls(min(finite, default=0.0), max(finite, default=0.0), signed, log)

    def levels(self, cells: Sequence[float], ramp: Ramp) -> list[int]:
        """A level of the ramp for each number; NOTHING for NaN."""
        steps = (ramp.levels - 1) // 2 if self.signed else ramp.levels - 1
        middle = steps if self.signed else 0
        step_of = self._logarithmic(steps) if self.log else self._linear(steps)
        levels = []
        for value in cells:
            if value != value:
                levels.append(NOTHING)
            elif self.signed and value < 0:
                levels.append(middle - step_of(-value))
            else:
                levels.append(middle + step_of(value))
        return levels

    def _logarithmic(self, steps: int) -> Callable[[float], int]:
        """The step of a magnitude: 0 for zero, from 1 on for all others."""
        if self.high <= 0:
            return lambda value: 0 if value <= 0 else steps
        factor = steps / math.log(self.high / self.low)
        log, log_low, last = math.log, math.log(self.low), steps - 1

        def step_of(value: float) -> int:
            if value <= 0:
                return 0
            if value == math.inf:
                return steps
            step = int((log(value) - log_low) * factor)
            return 1 + (0 if step < 0 else last if step > last else step)

        return step_of

    def _linear(self, steps: int) -> Callable[[float], int]:
        span = self.high - self.low
        if span <= 0:
            return lambda value: 0 if value <= 0 else steps
        return lambda value: max(0, min(steps, round(min(value - self.low, span) / span * steps)))


def magnitude_range(cells: Sequence[float]) -> tuple[float, float]:
    """The ends of a logarithmic scale of magnitudes; (0, 0) if all cells are zero."""
    sizes = sorted(size for size in map(abs, cells) if 0 < size < math.inf)
    if not sizes:
        return 0.0, 0.0
    high = sizes[-1]
    return min(sizes[int(len(sizes) * SHARE_BELOW)], high / LEAST_SPAN), high
