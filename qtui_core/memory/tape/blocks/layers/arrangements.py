"""The function that runs a layer: by the style of its attention if that class has its own order,
else by its arrangement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qtui_core.memory.shape.model_shape import Layer
from qtui_core.memory.tape.blocks.layers import bloom, family_layers, layer
from qtui_core.memory.tape.blocks.linear.state import Pass
from qtui_core.memory.tape.blocks.linear.weights import Weights
from qtui_core.memory.tape.tape import Tape, Tensor

Runner = Callable[[Tape, Weights, Layer, Tensor, Pass], Tensor]

_BY_ARRANGEMENT: Final[dict[str, Runner]] = {
    "pre": layer.pre,
    "sandwich": layer.sandwich,
    "post": layer.post,
    "parallel": layer.parallel,
}

_BY_STYLE: Final[dict[str, Runner]] = {
    "bloom": bloom.layer,
    "falcon": family_layers.falcon,
    "falcon_grouped": family_layers.falcon,
    "phi3": layer.phi3,
    "stablelm": layer.stablelm,
    "llama4": layer.llama4,
    "llama4-tuned": layer.llama4,
    "gpt2": family_layers.gpt2,
    "gpt_bigcode": family_layers.gpt2,
    "gpt_neox": family_layers.gpt_neox,
    "phi": family_layers.phi,
    "opt": family_layers.opt,
    "bert": family_layers.bert,
}


def run_layer(tape: Tape, weights: Weights, spec: Layer, state: Pass, hidden: Tensor) -> Tensor:
    """The output of the layer for `hidden`."""
    style = spec.attention.style
    runner = _BY_STYLE.get(style) or _BY_ARRANGEMENT[spec.arrangement]
    return runner(tape, weights, spec, hidden, state)
