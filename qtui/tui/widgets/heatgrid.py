"""Magnitudes pooled from a matrix, and which level of a ramp each one gets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from qtui.tui.widgets.drawing import Ramp

# A narrower range than this would paint rounding noise in the loudest colours.
LEAST_SPAN = 4.0
# The scale starts where all but this share of the cells lie above it: one cell of almost no
# error must not press all others into the top of the scale.
SHARE_BELOW = 0.01
NOTHING = -1


@dataclass(frozen=True)
class HeatGrid:
    """Magnitudes >= 0, pooled by maximum from a matrix of `rows` x `columns` elements.

    `cells` is flat, `grid_rows` x `grid_columns`, NaN where there is nothing to show; cell
    (i, j) covers the rows from `i * rows // grid_rows` up to the next cell's first, and the
    columns likewise.
    """

    rows: int
    columns: int
    grid_rows: int
    grid_columns: int
    cells: Sequence[float] = field(repr=False)

    def like(self, other: HeatGrid) -> bool:
        """Whether the two have the same cells, of matrices of the same shape."""
        return (self.rows, self.columns, self.grid_rows, self.grid_columns) == (
            other.rows,
            other.columns,
            other.grid_rows,
            other.grid_columns,
        )

    def first_row(self, grid_row: int) -> int:
        return grid_row * self.rows // self.grid_rows

    def first_column(self, grid_column: int) -> int:
        return grid_column * self.columns // self.grid_columns

    @property
    def pool(self) -> tuple[int, int]:
        """The largest number of rows and columns that one cell stands for."""
        return -(-self.rows // self.grid_rows), -(-self.columns // self.grid_columns)

    @property
    def peak(self) -> tuple[int, int]:
        """The cell with the largest magnitude; the first one where there are several."""
        best, largest = 0, -1.0
        for index, value in enumerate(self.cells):
            if value > largest:  # False for NaN
                best, largest = index, value
        return divmod(best, self.grid_columns)


def display_range(cells: Sequence[float]) -> tuple[float, float]:
    """Ends of the logarithmic scale; (0, 0) where no cell is above zero."""
    positive = sorted(value for value in cells if 0 < value < math.inf)
    if not positive:
        return 0.0, 0.0
    high = positive[-1]
    return min(positive[int(len(positive) * SHARE_BELOW)], high / LEAST_SPAN), high


def levels_of(cells: Sequence[float], ends: tuple[float, float], ramp: Ramp) -> list[int]:
    """A level of the ramp for each cell, 0 for no error at all; NOTHING for NaN."""
    low, high = ends
    if high <= 0:
        return [NOTHING if math.isnan(value) else 0 for value in cells]
    # Level 0 is kept for zero, which a logarithm cannot place.
    steps = ramp.levels - 1
    scale = steps / math.log(high / low)
    log_low = math.log(low)
    levels = []
    for value in cells:
        if math.isnan(value):
            levels.append(NOTHING)
        elif value <= 0:
            levels.append(0)
        elif value == math.inf:
            levels.append(steps)
        else:
            step = int((math.log(value) - log_low) * scale)
            levels.append(1 + max(0, min(steps - 1, step)))
    return levels
