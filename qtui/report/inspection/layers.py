"""The error of a scheme layer by layer, as shades: which layers and which of their matrices are
worst."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qtui.report.document import HeatMap
from qtui.report.numbers import format_decibels

if TYPE_CHECKING:
    from qtui_core.inspection.report import TensorReport

#: The name of a weight: what is before the number of its layer, the number, and which weight.
_IN_LAYER = re.compile(r"(.+?)\.(\d{1,9})\.(.+)")
#: Cells of a row. Where there are more layers, a cell is the worst of several.
WIDTH = 64
#: Rows of the map: a model has seven matrices in a layer, seldom more than twelve.
HEIGHT = 24
#: The shade of the least error: lighter than any other, and not blank.
_LIGHTEST = 0.1


def place_of(name: str) -> tuple[str, int, str] | None:
    """The stack of layers that a weight is in, the number of its layer, and which weight of the
    layer it is; the numbers of experts are "*". None outside of layers."""
    match = _IN_LAYER.fullmatch(name)
    if match is None:
        return None
    return match[1], int(match[2]), re.sub(r"\d+", "*", match[3]).removesuffix(".weight")


def layer_map(tensors: Sequence[TensorReport], scheme: int, name: str) -> HeatMap | None:
    """The relative squared error of each matrix under a scheme: a row for each kind of matrix, a
    cell for each layer, left to right. Experts of a layer are one matrix, the worst. None where
    fewer than two layers were measured, or all alike.

    Args:
        scheme: its index in the errors of `tensors`.
        name: of the scheme, for the note.
    """
    found: dict[str, dict[tuple[str, int], tuple[float, str]]] = {}
    for tensor in tensors:
        place = place_of(tensor.info.name)
        error = tensor.errors[scheme].relative_mse if place and tensor.errors else None
        if place and error is not None:
            stack, layer, kind = place
            cells = found.setdefault(stack, {})
            key = (kind, layer)
            cells[key] = max(cells.get(key, (0.0, "")), (error, tensor.info.name))
    if not found:
        return None
    layers, cells = max(found.items(), key=lambda item: len(item[1]))
    kinds = list(dict.fromkeys(kind for kind, _ in cells))
    last = max(layer for _, layer in cells)
    least, most = min(cells.values()), max(cells.values())
    if last == 0 or len(kinds) > HEIGHT or least[0] == most[0]:
        return None
    a_cell = -(-(last + 1) // WIDTH)

    def shade(kind: str, first: int) -> float:
        errors = [cells[kind, n][0] for n in range(first, first + a_cell) if (kind, n) in cells]
        if not errors:
            return 0.0
        return _LIGHTEST + (1 - _LIGHTEST) * (max(errors) - least[0]) / (most[0] - least[0])

    several = f", {a_cell} a cell, of which it is the worst" if a_cell > 1 else ""
    return HeatMap(
        rows=tuple(
            (kind, tuple(shade(kind, first) for first in range(0, last + 1, a_cell)))
            for kind in kinds
        ),
        note=(
            f"Error of {name} in {layers}, a column for each layer from 0 to {last}{several}: "
            f"the lightest is {least[1]} with {_sqnr(least[0])}, the darkest {most[1]} with "
            f"{_sqnr(most[0])}. Blank: no such matrix was measured."
        ),
    )


def _sqnr(relative_mse: float) -> str:
    return f"{format_decibels(-10 * math.log10(relative_mse))} dB" if relative_mse else "no error"
