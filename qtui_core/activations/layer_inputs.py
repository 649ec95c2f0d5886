"""The inputs of every linear layer of a model while it reads a text. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from qtui_core.activations.capture import capture
from qtui_core.activations.records import LayerInputs
from qtui_core.errors import UsageError
from qtui_core.loading.model import load_model
from qtui_core.loading.text import Text
from qtui_core.loading.tokens import TOKEN_BUDGET, Tokenizer, positions_of, split_windows
from qtui_core.models import ModelSource

#: Bytes of rows that are kept of all layers together, in equal shares: 128 to 512 tokens for a
#: model of seven billion parameters.
KEPT_BYTES: Final = 2 << 30


def layer_inputs(
    source: ModelSource,
    tensors: Sequence[str],
    text: Text,
    *,
    progress: Callable[[float], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> dict[str, LayerInputs]:
    """Runs the model once over the calibration half of a text. Weights that are not those of a
    linear layer (embeddings) are left out.

    Raises what `load_model`, `Tokenizer.encode` and `capture` raise.
    """
    loaded = load_model(source)
    modules = {}
    for name in tensors:
        try:
            modules[name] = loaded.module_of(name)
        except UsageError:
            continue  # not a linear layer: it is missing in the result
    tokenizer = Tokenizer(loaded)
    ids = tokenizer.encode(text.content)
    windows, _ = split_windows(ids, tokenizer, positions_of(loaded.model), TOKEN_BUDGET)
    chosen = sorted(set(modules.values()))
    records = capture(
        loaded,
        windows,
        chosen,
        keep_bytes=KEPT_BYTES // max(1, len(chosen)),
        keep_outputs=False,
        histogram=False,
        progress=progress,
        cancelled=cancelled,
    )
    return {
        name: LayerInputs(records[module].input.rows, records[module].kind == "Conv1D")
        for name, module in modules.items()
    }
