"""The tensors of a model by layer and module, each with its SQNR where it was read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from qtui.report.inspection.layers import place_of
from qtui.screen.tensors.list import sqnr_key
from qtui_core.dataclass import dataclass
from qtui_core.quantities import plural


@dataclass(frozen=True)
class LayerCell:
    """The tensors of one kind in one layer, or in several that share a column. `worst` is the one
    with the lowest SQNR of those that were read, "" before any was; `sqnr_db` is its own, minus
    infinity where values were lost, None without an error or before it was read."""

    names: tuple[str, ...]
    read: int
    worst: str
    sqnr_db: float | None

    @property
    def chosen(self) -> str:
        """The tensor that the cell stands for."""
        return self.worst or self.names[0]


@dataclass(frozen=True)
class LayerGrid:
    """A row for each kind of module with its name, a cell for each column; None where there is no
    such tensor. A column is `a_cell` layers. `of_kinds` kinds that had no row of their own are in
    the last one."""

    rows: tuple[tuple[str, tuple[LayerCell | None, ...]], ...]
    a_cell: int
    layers: int
    of_kinds: int

    def find(self, name: str) -> tuple[int, int] | None:
        """The row and the column of a tensor."""
        for y, (_, cells) in enumerate(self.rows):
            for x, cell in enumerate(cells):
                if cell is not None and name in cell.names:
                    return y, x
        return None

    def at(self, y: int, x: int) -> LayerCell | None:
        """The cell of a row and a column; None where there is none (any more)."""
        cells = self.rows[y][1] if y < len(self.rows) else ()
        return cells[x] if x < len(cells) else None

    def near(self, at: tuple[int, int] | None, rows: int, columns: int) -> LayerCell | None:
        """The next cell with a tensor in a direction; the first of all without a place."""
        if at is None:
            return next((c for _, cells in self.rows for c in cells if c is not None), None)
        y, x = at
        if columns:
            cells = self.rows[y][1]
            range_ = range(x + columns, len(cells) if columns > 0 else -1, columns)
            return next((cells[i] for i in range_ if cells[i] is not None), None)
        range_ = range(y + rows, len(self.rows) if rows > 0 else -1, rows)
        found = (self._nearest(self.rows[i][1], x) for i in range_)
        return next((cell for cell in found if cell is not None), None)

    @staticmethod
    def _nearest(cells: Sequence[LayerCell | None], x: int) -> LayerCell | None:
        places = [i for i, cell in enumerate(cells) if cell is not None]
        return cells[min(places, key=lambda i: abs(i - x))] if places else None

    @property
    def pooled(self) -> str:
        """What a cell stands for where it is more than one tensor; "" where none is."""
        words = []
        most = max((len(c.names) for _, cells in self.rows for c in cells if c), default=0)
        if self.a_cell > 1:
            words.append(f"{self.a_cell} layers")
        if self.of_kinds:
            words.append(f"{self.of_kinds} kinds in the last row")
        if most > self.a_cell and not self.of_kinds:
            words.append("all experts")
        return f"a cell is the worst of {' and '.join(words)}" if words else ""


def layer_grid(
    names: Iterable[str], sqnr_db: Mapping[str, float | None], columns: int, rows: int
) -> LayerGrid:
    """The grid in at most `columns` cells by `rows`: layers that find no column share one, kinds
    that find no row share the last. What is in no layer comes last, in the first column."""
    kinds: dict[tuple[str, str], dict[int, list[str]]] = {}
    for name in names:
        stack, layer, kind = place_of(name) or ("", 0, name.removesuffix(".weight"))
        kinds.setdefault((stack, kind), {}).setdefault(layer, []).append(name)
    layers = 1 + max((layer for cells in kinds.values() for layer in cells), default=0)
    a_cell = -(-layers // max(1, columns))
    stacks = {stack for stack, _ in kinds if stack}
    found = [
        (f"{stack}.{kind}" if stack and len(stacks) > 1 else kind, cells)
        for (stack, kind), cells in sorted(kinds.items(), key=lambda item: not item[0][0])
    ]
    kept = found if len(found) <= rows else found[: max(0, rows - 1)]
    rest = found[len(kept) :]
    if rest:
        merged: dict[int, list[str]] = {}
        for _, cells in rest:
            for layer, tensors in cells.items():
                merged.setdefault(layer, []).extend(tensors)
        kept = [*kept, (f"{plural(len(rest), 'more kind')}", merged)]

    def cell(tensors: list[str]) -> LayerCell | None:
        read = [name for name in tensors if name in sqnr_db]
        worst = min(read, key=lambda name: sqnr_key(sqnr_db[name]), default="")
        return LayerCell(tuple(tensors), len(read), worst, sqnr_db[worst] if worst else None)

    drawn = []
    for label, by_layer in kept:
        pooled: dict[int, list[str]] = {}
        for layer in sorted(by_layer):
            pooled.setdefault(layer // a_cell, []).extend(by_layer[layer])
        width = -(-layers // a_cell)
        line = tuple(cell(pooled[x]) if x in pooled else None for x in range(width))
        drawn.append((label, line))
    return LayerGrid(tuple(drawn), a_cell, layers, len(rest))


def finite(sqnr_db: Mapping[str, float | None]) -> list[float]:
    """The numbers in dB, sorted, without lost values and tensors that have no error."""
    return sorted(v for v in sqnr_db.values() if v is not None and math.isfinite(v))
