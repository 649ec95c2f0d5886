"""A linear layer and an embedding table under the plan: dense, quantized, with a low-rank adapter
(peft 0.21)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.shape.model_shape import Embedding, Linear
from qtui_core.memory.shape.packings import STORED
from qtui_core.memory.tape.blocks.quantized import linear_4bit, linear_int8, linear_packed
from qtui_core.memory.tape.blocks.weights import LinearWeights, Weights
from qtui_core.memory.tape.operations import embedding, linear
from qtui_core.memory.tape.tensors import SCALE, Tensor

#: Layouts over which peft's adapters work as over dense layers: its Linear over FP8Linear, which is
#: an nn.Linear, GPTQLoraLinear, and HqqLoraLinear.
_LIKE_DENSE: Final = ("fp8", "gptq", "hqq")


def project(
    weights: Weights,
    spec: Linear | None,
    x: Tensor,
    label: Label | str = "mm",
    own: LinearWeights | None = None,
    *,
    turned: bool = False,
) -> Tensor:
    """The layer `spec` of `x`: `[tokens, inputs]` to `[tokens, outputs]`. `label` is for the result
    of a layer that is not quantized; `own` are its weights, if they are not found by its name.
    `turned`: the gradient arrives with tokens last, and is copied for each product but that of 4
    bits."""
    assert spec is not None
    tape = x.tape
    before, tape.path = tape.path, spec.name
    own = own or weights.linear(spec)
    if own.down is None:
        result = base(spec, own, x, label, turned=turned)
    elif own.quant is None or own.quant in _LIKE_DENSE:
        result = _adapted(spec, own, x, label, turned)
    else:
        result = _adapted_quantized(spec, own, x, turned)
    tape.path = before
    return result


def base(
    spec: Linear,
    own: LinearWeights,
    x: Tensor,
    label: Label | str = "mm",
    *,
    turned: bool = False,
) -> Tensor:
    """The layer without its adapter."""
    if own.quant is None:
        apart = spec.bias_apart and own.bias is not None
        bias = None if apart else own.bias
        sizes = spec.inputs, spec.outputs
        result = linear(x, own.weight, bias, *sizes, label, transposed=spec.transposed)
        result = _laid_out(own, result, turned)
        return result + own.bias if apart and own.bias is not None else result
    if own.quant == "int8":
        return linear_int8(spec, own, x, turned=turned)
    if own.plan.quant == STORED:
        return _laid_out(own, linear_packed(spec, own, x), turned)
    return linear_4bit(spec, own, x)


def _laid_out(own: LinearWeights, product: Tensor, turned: bool) -> Tensor:
    """The gradient of one sequence can be viewed as that of the product in any layout."""
    return product.transposed() if turned and own.plan.batch > 1 else product


def _adapted(
    spec: Linear, own: LinearWeights, x: Tensor, label: Label | str, turned: bool
) -> Tensor:
    """peft/tuners/lora/layer.py, Linear.forward: the input is cast to the adapter's dtype, and the
    sum back to the base's; HqqLoraLinear of lora/hqq.py does so only outside of autocast."""
    assert own.down is not None
    result = base(spec, own, x, label, turned=turned)
    given = result.dtype
    if own.quant != "hqq" or x.tape.autocast is None:
        x = x.to(own.down.dtype)
    output = _laid_out(own, _low_rank(spec, own, x), turned) * SCALE
    result = result.add(output, "add" if label == "mm" else label)
    del output
    return result.to(given, "_to_copy" if label == "mm" else label)


def _adapted_quantized(spec: Linear, own: LinearWeights, x: Tensor, turned: bool) -> Tensor:
    """peft/tuners/lora/bnb.py, Linear4bit.forward and Linear8bitLt.forward: explicit casts are made
    only outside of autocast; with 4 bits the base's result is cloned. AwqLoraLinear of lora/awq.py
    casts the product before it is scaled."""
    assert own.down is not None
    tape, quant = x.tape, own.quant or ""
    result = base(spec, own, x, turned=turned)
    if quant != "int8" and own.plan.quant != STORED:
        result = result.clone()
    if tape.autocast is None:
        x = x.to(own.down.dtype)
    output = _laid_out(own, _low_rank(spec, own, x), turned)
    if not quant.startswith("awq"):
        output = output * SCALE
    if tape.autocast is None:
        output = output.to(result.dtype)
    if quant.startswith("awq"):
        output = output * SCALE
    return result + output


def _low_rank(spec: Linear, own: LinearWeights, x: Tensor) -> Tensor:
    """`lora_B(lora_A(dropout(x)))`."""
    assert own.down is not None
    assert own.up is not None
    rank = own.plan.lora_rank
    x = x.dropout(own.plan.lora_dropout)
    x = linear(x, own.down, None, spec.inputs, rank)
    return linear(x, own.up, None, rank, spec.outputs)


def look_up(
    weights: Weights,
    spec: Embedding,
    indices: Tensor,
    base: Callable[[], Tensor] | None = None,
    *,
    scales: bool = False,
) -> Tensor:
    """Rows of `spec` by `indices`. `base` runs what is under the adapter, if that is more than the
    look-up; `scales`: it multiplies the rows by a constant of the model's dtype.

    The adapter's part is looked up in the transpose of A and multiplied by that of B, in the
    adapter's dtype.
    """
    tape = indices.tape
    before, tape.path = tape.path, spec.name
    if base is None:
        result = embedding(weights[f"{spec.name}.weight"], indices, spec.columns)
    else:
        result = base()
    pair = weights.adapter(spec)
    if pair is not None:
        given, rank = result.dtype, weights.plan.lora_rank
        down, up = pair[0].turned(copied=True), pair[1].turned()
        after_down = embedding(down, indices, rank)
        output = linear(after_down, up, None, rank, spec.columns) * SCALE
        if scales and output.dtype != weights.plan.dtype:
            output = output * tape.new(1, output.dtype, "embed_scale")
        elif scales:
            output = output * SCALE
        result = result + output
        result = result.to(given)
    tape.path = before
    return result
