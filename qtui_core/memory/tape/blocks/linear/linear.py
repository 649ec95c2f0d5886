"""A linear layer under the plan: dense, quantized, with a low-rank adapter (peft 0.21)."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.shape.model_shape import Linear
from qtui_core.memory.shape.packings import LAYOUTS
from qtui_core.memory.tape.blocks.linear.packed import linear_packed
from qtui_core.memory.tape.blocks.linear.quantized import linear_4bit, linear_int8
from qtui_core.memory.tape.blocks.linear.weights import LinearWeights, Weights
from qtui_core.memory.tape.operations.linear import MM, linear
from qtui_core.memory.tape.operations.pointwise import ADD, add, clone, dropout, scale
from qtui_core.memory.tape.tape import TO_COPY, Tape, Tensor

#: Layouts over which peft's adapters work as over dense layers: its Linear over FP8Linear, which is
#: an nn.Linear, GPTQLoraLinear, and HqqLoraLinear.
_LIKE_DENSE: Final = ("fp8", "gptq", "hqq")


def project(
    tape: Tape,
    weights: Weights,
    spec: Linear,
    x: Tensor,
    label: Label = MM,
    own: LinearWeights | None = None,
) -> Tensor:
    """The layer `spec` of `x`: `[tokens, inputs]` to `[tokens, outputs]`. `label` is for the result
    of a layer that is not quantized; `own` are its weights, if they are not found by its name."""
    before = tape.path
    tape.path = spec.name
    own = own or weights.linear(spec)
    if own.down is None:
        result = base(tape, spec, own, x, label)
    elif own.quant is None or own.quant in _LIKE_DENSE:
        result = _adapted(tape, spec, own, x, label)
    elif own.quant == "int8" or own.quant in LAYOUTS:
        result = _adapted_int8(tape, spec, own, x)
    else:
        result = _adapted_4bit(tape, spec, own, x)
    tape.path = before
    return result


def base(
    tape: Tape,
    spec: Linear,
    own: LinearWeights,
    x: Tensor,
    label: Label = MM,
) -> Tensor:
    """The layer without its adapter."""
    if own.quant is None and spec.bias_apart and own.bias is not None:
        product = linear(tape, x, own.weight, None, spec.inputs, spec.outputs, label)
        return add(tape, product, own.bias)
    if own.quant is None:
        return linear(
            tape,
            x,
            own.weight,
            own.bias,
            spec.inputs,
            spec.outputs,
            label,
            transposed=spec.transposed,
        )
    if own.quant == "int8":
        return linear_int8(tape, spec, own, x)
    if own.quant in LAYOUTS:
        return linear_packed(tape, spec, own, x)
    return linear_4bit(tape, spec, own, x)


def _adapted(tape: Tape, spec: Linear, own: LinearWeights, x: Tensor, label: Label) -> Tensor:
    """peft/tuners/lora/layer.py, Linear.forward: the input is cast to the adapter's dtype, and the
    sum back to the base's; HqqLoraLinear of lora/hqq.py does so only outside of autocast."""
    assert own.down is not None
    result = base(tape, spec, own, x, label)
    given = result.dtype
    if own.quant != "hqq" or tape.autocast is None:
        x = tape.to(x, own.down.dtype)
    output = scale(tape, _low_rank(tape, spec, own, x))
    result = add(tape, result, output, ADD if label == MM else label)
    del output
    return tape.to(result, given, TO_COPY if label == MM else label)


def _adapted_4bit(tape: Tape, spec: Linear, own: LinearWeights, x: Tensor) -> Tensor:
    """peft/tuners/lora/bnb.py, Linear4bit.forward: the base's result is cloned; explicit casts are
    made only outside of autocast."""
    assert own.down is not None
    result = clone(tape, base(tape, spec, own, x))
    expected = result.dtype
    if tape.autocast is None:
        x = tape.to(x, own.down.dtype)
    output = scale(tape, _low_rank(tape, spec, own, x))
    if tape.autocast is None:
        output = tape.to(output, expected)
    return add(tape, result, output)


def _adapted_int8(tape: Tape, spec: Linear, own: LinearWeights, x: Tensor) -> Tensor:
    """peft/tuners/lora/bnb.py, Linear8bitLt.forward: as with 4 bits, but nothing is cloned, and the
    scaled product is cast before it is added. AwqLoraLinear of lora/awq.py casts it before it is
    scaled."""
    assert own.down is not None
    result = base(tape, spec, own, x)
    expected = result.dtype
    if tape.autocast is None:
        x = tape.to(x, own.down.dtype)
    output = _low_rank(tape, spec, own, x)
    first = (own.quant or "").startswith("awq")
    if not first:
        output = scale(tape, output)
    if tape.autocast is None:
        output = tape.to(output, expected)
    if first:
        output = scale(tape, output)
    return add(tape, result, output)


def _low_rank(tape: Tape, spec: Linear, own: LinearWeights, x: Tensor) -> Tensor:
    """`lora_B(lora_A(dropout(x)))`."""
    assert own.down is not None
    assert own.up is not None
    rank = own.plan.lora_rank
    x = dropout(tape, x, own.plan.lora_dropout)
    x = linear(tape, x, own.down, None, spec.inputs, rank)
    return linear(tape, x, own.up, None, rank, spec.outputs)
