"""CPU versions of the GPU kernels on the tape, for tapes that are compared with live steps on a
CPU. These are all differences:

- attention is one kernel for all dtypes, masks and grouped heads. It saves what flash attention
  saves except the state of a random generator, and its backward pass has no workspace
  (aten/src/ATen/native/transformers/attention.cpp, _scaled_dot_product_flash_attention_cpu), and
  its result has the layout of the queries, whatever their dtype;
- the statistics of a layer norm have the dtype of its weight (layer_norm.cpp);
- the backward pass of softmax needs no product in memory of its own (SoftMaxKernel.cpp).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from qtui_core.memory.tape import operations
from qtui_core.memory.tape.blocks import attention
from qtui_core.memory.tape.operations import FLASH, LAYER_NORM, Heads
from qtui_core.memory.tape.tensors import Gradients, Tensor


def flash(q: Tensor, k: Tensor, v: Tensor, sizes: Heads, mask: Tensor | None = None) -> Tensor:
    tape = q.tape
    dtype = q.dtype
    parts = q.elements, k.elements, v.elements

    def backward(gradient: Tensor) -> Gradients:
        return tuple(tape.new(size, dtype, f"{FLASH}_backward") for size in parts)

    node = tape.node("_scaled_dot_product_flash_attention_for_cpu", (q, k, v), backward)
    rows = sizes.batch * sizes.heads * sizes.queries
    output = tape.new(rows * sizes.of_value, dtype, FLASH)
    sums = tape.new(rows, "fp32", FLASH)
    tape.save(node, q, k, v, mask, output, sums)
    return tape.output(node, output)


def flashes(dtype: str, mask: Tensor | None, *_: object) -> bool:
    return mask is None


def softmax(x: Tensor, dtype: str | None = "fp32") -> Tensor:
    tape = x.tape
    x = x.cast_high() if dtype is None else x.to(dtype)
    elements, dtype = x.elements, x.dtype

    def backward(gradient: Tensor) -> Gradients:
        return (tape.new(elements, dtype, "_softmax_backward_data"),)

    node = tape.node("_softmax", (x,), backward)
    output = tape.new(elements, dtype, "_softmax")
    tape.save(node, output)
    return tape.output(node, output)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, size: int) -> Tensor:
    tape = x.tape
    elements, dtype, rows = x.elements, x.dtype, x.elements // size
    x_wanted = x.requires_grad
    weight_wanted = weight is not None and weight.requires_grad
    bias_wanted = bias is not None and bias.requires_grad
    statistics = dtype if weight is None else weight.dtype

    def backward(gradient: Tensor) -> Gradients:
        of_x = tape.new(elements, dtype, f"{LAYER_NORM}_backward") if x_wanted else None
        of_weight = tape.new(size, statistics, f"{LAYER_NORM}_backward") if weight_wanted else None
        of_bias = tape.new(size, statistics, f"{LAYER_NORM}_backward") if bias_wanted else None
        return of_x, of_weight, of_bias

    node = tape.node(LAYER_NORM, (x, weight, bias), backward)
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
        operations.flash: flash,
        operations.efficient: flash,
        operations.softmax: softmax,
        attention.flashes: flashes,
        operations.layer_norm: layer_norm,
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
