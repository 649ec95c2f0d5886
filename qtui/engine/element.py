"""One element of a tensor under a scheme, without quantizing the whole tensor."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from qtui.engine.answers.tensors import Element
from qtui_core.quant.elements import Segment, elements_of
from qtui_core.quant.layout import Columns, Whole, group_count, scale_index, tiles_of
from qtui_core.quant.levels import levels_at_scale
from qtui_core.quant.plan import Plan, prepare, round_trip
from qtui_core.schemes.granularity import (
    PerBlock,
    PerColumn,
    PerGroup,
    PerModel,
    PerRow,
    PerTensor,
    PerTile,
    PerToken,
)
from qtui_core.schemes.scheme import Family


class ElementRows(Protocol):
    """A tensor that returns rows as float32. A tensor of one dimension returns elements."""

    shape: tuple[int, ...]

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]: ...


def element_under_scheme(x: ElementRows, plan: Plan, row: int, column: int) -> Element:
    """Element [row, column] of the tensor seen as a matrix. Reads only the elements of its group,
    or its row if scales are per column.

    For an element that is not finite, `quantized` is the value itself and `error` is NaN. The
    scale is None for an element in a column kept in 16 bits.
    """
    rows, columns = elements_of(x).matrix
    index = row * columns + column
    start = index // plan.multiple * plan.multiple
    stop = min(rows * columns, start + plan.multiple)
    width = columns if len(x.shape) > 1 else 1
    first = start // width
    raw = x.rows(first, -(-stop // width)).reshape(-1)[start - first * width : stop - first * width]
    value = float(raw[index - start])
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        prepared = prepare(plan, Segment(start, raw, _as_it_is))
        quantized = float(round_trip(plan, prepared)[index - start])
    if plan.scheme.family is Family.INTEGER or plan.coder.code_dtype == np.int8:
        quantized += 0.0  # turns -0.0 into 0.0, as an integer code has no minus zero
    scale: float | None = None
    zero_point: float | None = None
    kept = plan.decomposition is not None and column in plan.decomposition.columns
    at = None if kept else scale_index(plan.scheme.granularity, x.shape, row, column)
    if at is not None:
        if not isinstance(plan.layout, Whole | Columns):
            at -= group_count(plan.layout, start) if start else 0
        elif isinstance(plan.layout, Whole):
            at = 0
        scale = float(prepared.decoding_scales.scale[at])
        if prepared.scales.zero_point is not None:
            zero_point = prepared.scales.zero_point[at].item()
    if not np.isfinite(value):
        quantized = value
    levels = () if scale is None else levels_at_scale(plan.scheme, scale, zero_point)
    return Element(
        row=row,
        column=column,
        value=value,
        quantized=quantized,
        error=quantized - value,
        levels=tuple(map(float, levels)),
        scale=scale,
        zero_point=zero_point,
        where=(f"column {column:,}, kept in fp16" if kept else _where(plan, x.shape, index)),
    )


def _as_it_is(raw: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(raw, np.float32)


def _where(plan: Plan, shape: tuple[int, ...], index: int) -> str:
    """The elements that share the scale of an element of the flattened tensor, in words."""
    granularity = plan.scheme.granularity
    (rows, columns), (height, width) = tiles_of(granularity, shape)
    row, column = divmod(index, columns)
    top, left = row // height * height, column // width * width
    bottom, right = min(rows, top + height) - 1, min(columns, left + width) - 1
    match granularity:
        case PerModel():
            return "the whole model"
        case PerTensor():
            return "the whole tensor"
        case PerRow():
            return f"row {row:,}"
        case PerColumn():
            return f"column {column:,}"
        case PerToken():
            return f"token {row:,}"
        case PerTile():
            return f"rows {top:,} to {bottom:,}, columns {left:,} to {right:,}"
        case PerGroup():
            return f"row {row:,}, {left:,} to {right:,}"
        case PerBlock():
            return f"elements {left:,} to {right:,}"
    return ""
