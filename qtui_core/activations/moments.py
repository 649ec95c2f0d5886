"""The second moments of what flows into every linear layer of a model. Needs torch.

They are what an error of the weights is weighed by where the error of the output counts: for
inputs that do not correlate, E|ΔW x|² is the sum over the inputs j of E[x_j²] |ΔW_j|².
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qtui_core.activations.capture import capture
from qtui_core.activations.load import load_model
from qtui_core.activations.observers import Float64
from qtui_core.activations.text import Text
from qtui_core.activations.tokens import TOKEN_BUDGET, Tokenizer, positions_of, split_windows
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.models import ModelSource


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """Of the layer of one weight: E[x_j²] float64 `[inputs]` over all tokens, and whether the
    weight is kept as [inputs, outputs]."""

    tensor: str
    second_moment: Float64
    transposed: bool


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """`layers` of the weights that have one, `tokens` seen, and `note` on the computation."""

    layers: tuple[LayerInputs, ...]
    tokens: int
    note: str


def input_moments(
    source: ModelSource,
    tensors: Sequence[str],
    text: Text,
    *,
    progress: Callable[[float], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> ModelInputs:
    """Runs the model once over the calibration half of a text, keeping no rows. Weights that are
    not of a linear layer (embeddings) are left out.

    Raises as `load_model`, `Tokenizer.encode` and `capture` do.
    """
    loaded = load_model(source)
    modules = {}
    for name in tensors:
        try:
            modules[name] = loaded.module_of(name)
        except UsageError:
            continue  # no linear layer: the caller is told by its absence
    tokenizer = Tokenizer(loaded)
    ids = tokenizer.encode(text.content)
    windows, _ = split_windows(ids, tokenizer, positions_of(loaded.model), TOKEN_BUDGET)
    records = capture(
        loaded,
        windows,
        sorted(set(modules.values())),
        keep_bytes=0,
        histogram=False,
        progress=progress,
        cancelled=cancelled,
    )
    layers = tuple(
        LayerInputs(
            name,
            records[module].input.observed.second_moment,
            transposed=records[module].kind == "Conv1D",
        )
        for name, module in modules.items()
    )
    return ModelInputs(layers, windows.tokens, loaded.note)
