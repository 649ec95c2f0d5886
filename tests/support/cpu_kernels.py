"""CPU versions of the GPU kernels on the tape, for tapes that are compared with live steps on a
CPU. These are all differences:

- attention is one kernel for all dtypes, masks and grouped heads. It saves what flash attention
  saves except the state of a random generator, and its backward pass has no workspace
  (aten/src/ATen/native/transformers/attention.cpp, _scaled_dot_product_flash_attention_cpu);
- the statistics of a layer norm have the dtype of its weight (layer_norm.cpp);
- the backward pass of softmax needs no product in memory of its own (SoftMaxKernel.cpp).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from qtui_core.memory.tape.operations import attention, reductions
from qtui_core.memory.tape.operations.attention import (
    FLASH,
    FLASH_BACKWARD,
    SOFTMAX_BACKWARD,
    Heads,
)
from qtui_core.memory.tape.operations.reductions import LAYER_NORM, LAYER_NORM_BACKWARD
from qtui_core.memory.tape.tape import Gradients, Tape, Tensor


def flash(tape: Tape, q: Tensor, k: Tensor, v: Tensor, sizes: Heads) -> Tensor:
    dtype = q.dtype
    parts = q.elements, k.elements, v.elements

    def backward(gradient: Tensor) -> Gradients:
        return tuple(tape.new(size, dtype, FLASH_BACKWARD) for size in parts)

    node = tape.node("_scaled_dot_product_flash_attention_for_cpu", (q, k, v), backward)
    rows = sizes.batch * sizes.heads * sizes.queries
    output = tape.new(rows * sizes.of_value, dtype, FLASH)
    sums = tape.new(rows, "fp32", FLASH)
    tape.save(node, q, k, v, output, sums)
    return tape.output(node, output)


def efficient(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, sizes: Heads, mask: Tensor | None
) -> Tensor:
    if mask is not None:
        raise NotImplementedError("No live step has a mask.")
    return flash(tape, q, k, v, sizes)


def softmax(tape: Tape, x: Tensor, *, plain: bool = False) -> Tensor:
    x = tape.cast_high(x) if plain else tape.to(x, "fp32")
    elements, dtype = x.elements, x.dtype

    def backward(gradient: Tensor) -> Gradients:
        return (tape.new(elements, dtype, SOFTMAX_BACKWARD),)

    node = tape.node("_softmax", (x,), backward)
    output = tape.new(elements, dtype, attention.SOFTMAX)
    tape.save(node, output)
    return tape.output(node, output)


def layer_norm(
    tape: Tape, x: Tensor, weight: Tensor | None, bias: Tensor | None, size: int
) -> Tensor:
    elements, dtype, rows = x.elements, x.dtype, x.elements // size
    x_wanted = x.requires_grad
    weight_wanted = weight is not None and weight.requires_grad
    bias_wanted = bias is not None and bias.requires_grad
    statistics = dtype if weight is None else weight.dtype

    def backward(gradient: Tensor) -> Gradients:
        of_x = tape.new(elements, dtype, LAYER_NORM_BACKWARD) if x_wanted else None
        of_weight = tape.new(size, statistics, LAYER_NORM_BACKWARD) if weight_wanted else None
        of_bias = tape.new(size, statistics, LAYER_NORM_BACKWARD) if bias_wanted else None
        return of_x, of_weight, of_bias

    node = tape.node("native_layer_norm", (x, weight, bias), backward)
    tape.save(node, x, weight, bias)
    output = tape.new(elements, dtype, LAYER_NORM)
    average = tape.new(rows, statistics, LAYER_NORM)
    deviation = tape.new(rows, statistics, LAYER_NORM)
    tape.save(node, average, deviation)
    return tape.output(node, output)


@contextmanager
def on_cpu() -> Iterator[None]:
    """Within the block, tapes have the kernels of a CPU."""
    replaced: dict[Callable[..., Any], Callable[..., Any]] = {
        attention.flash: flash,
        attention.efficient: efficient,
        attention.softmax: softmax,
        reductions.layer_norm: layer_norm,
    }
    undo = []
    for name, module in list(sys.modules.items()):
        if name.startswith("qtui_core.memory"):
            for key, value in list(vars(module).items()):
                if callable(value) and value.__hash__ and value in replaced:
                    undo.append((module, key, value))
                    setattr(module, key, replaced[value])
    try:
        yield
    finally:
        for module, key, value in undo:
            setattr(module, key, value)
