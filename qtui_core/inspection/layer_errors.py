"""The error in the output of a layer under each scheme for its weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qtui_core.activations.output_error import MAX_ELEMENTS, output_errors, tokens_for
from qtui_core.activations.records import LayerInputs
from qtui_core.answers.tensors import LayerErrors
from qtui_core.inspection.rows import strips_of
from qtui_core.inspection.sample import limit_of, sample_rows
from qtui_core.models import ModelSource, row_elements, rows_of
from qtui_core.models.files.arrays import read_float32
from qtui_core.quant import Scheme
from qtui_core.quant.elements import Float32


def layer_errors(
    source: ModelSource,
    inputs: Mapping[str, LayerInputs],
    schemes: Sequence[Scheme],
    *,
    full: bool = False,
    progress: Callable[[float], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> dict[str, LayerErrors]:
    """The errors of every layer for which finite inputs were seen, by the name of its weight.

    Rows of a weight are outputs, so a sample of rows, as in an inspection, gives the error of a
    sample of outputs. With `full` all rows are read, up to MAX_ELEMENTS elements. The rows of a
    transposed weight are inputs, so it is read whole; if it has more than MAX_ELEMENTS elements it
    is left out.

    Raises Cancelled, and ModelError if a weight cannot be read.
    """
    found = {}
    given_to = [source.tensor(name) for name in inputs]
    limit = min(limit_of(source.origin, given_to, full=full) or MAX_ELEMENTS, MAX_ELEMENTS)
    for done, (name, given) in enumerate(inputs.items()):
        info = source.tensor(name)
        x = given.rows[np.isfinite(given.rows).all(axis=1)]
        if not x.shape[0] or (given.transposed and info.elements > MAX_ELEMENTS):
            continue
        shape = rows_of(info), row_elements(info)
        taken = None if given.transposed else limit
        strips = sample_rows(*shape, taken, strips_of(source.origin)).strips
        weight = _rows(source, name, strips)
        # As in the errors of weights, values that are not finite do not count.
        np.nan_to_num(weight, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
        beside = name.removesuffix(".weight") + ".bias"
        bias = None
        if beside in source.tensors:
            outputs = ((0, weight.shape[1]),) if given.transposed else strips
            bias = _rows(source, beside, outputs).reshape(-1)
        take = tokens_for((weight.shape[0], weight.shape[1]), x.shape[0])
        x = x[np.linspace(0, x.shape[0] - 1, take).astype(int)]
        table = output_errors(
            x, weight, bias, schemes, [None], transposed=given.transposed, cancelled=cancelled
        )
        found[name] = LayerErrors(take, tuple(row[0].relative_mse or 0.0 for row in table))
        if progress is not None:
            progress((done + 1) / len(inputs))
    return found


def _rows(source: ModelSource, name: str, strips: Sequence[tuple[int, int]]) -> Float32:
    return np.concatenate([read_float32(source, name, start, stop) for start, stop in strips])
