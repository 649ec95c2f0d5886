"""Normalizations in the operations of the transformers classes, by `Norm.kind`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qtui_core.memory.shape.model_shape import Norm
from qtui_core.memory.tape.blocks.linear.weights import Weights
from qtui_core.memory.tape.operations.fused import rms_norm, rms_norm_trained
from qtui_core.memory.tape.operations.pointwise import add_constant, mul, power, rsqrt, subtract
from qtui_core.memory.tape.operations.reductions import layer_norm, mean
from qtui_core.memory.tape.tape import Tape, Tensor


def normalize(tape: Tape, weights: Weights, spec: Norm, x: Tensor) -> Tensor:
    """The norm `spec` of `x`, over its last `spec.size` elements."""
    before = tape.path
    tape.path = spec.name
    if spec.kind == "rms" and weights.plan.kernels != "torch":
        weight = weights.weight(spec)
        assert weight is not None
        kernel = rms_norm if weights.plan.kernels == "fused" else rms_norm_trained
        result = kernel(tape, x, weight, spec.size)
    else:
        result = NORMS[spec.kind](tape, weights, spec, x)
    tape.path = before
    return result


def root_mean_square(tape: Tape, weights: Weights, spec: Norm, hidden: Tensor) -> Tensor:
    """LlamaRMSNorm.forward: in float32, cast back, then times the weight. Its variance and the cast
    result keep their names until it returns."""
    given = hidden.dtype
    hidden = tape.to(hidden, "fp32")
    variance = mean(tape, power(tape, hidden), hidden.elements // spec.size)
    hidden = mul(tape, hidden, rsqrt(tape, add_constant(tape, variance)))
    weight = weights.weight(spec)
    if weight is None:
        return tape.to(hidden, given)
    return mul(tape, weight, tape.to(hidden, given))


def cast_last(tape: Tape, weights: Weights, spec: Norm, hidden: Tensor) -> Tensor:
    """Olmo2RMSNorm.forward: times the weight before the cast back."""
    given = hidden.dtype
    hidden = tape.to(hidden, "fp32")
    variance = mean(tape, power(tape, hidden), hidden.elements // spec.size)
    hidden = mul(tape, hidden, rsqrt(tape, add_constant(tape, variance)))
    weight = weights.weight(spec)
    assert weight is not None
    return tape.to(mul(tape, weight, hidden), given)


def one_plus(tape: Tape, weights: Weights, spec: Norm, x: Tensor) -> Tensor:
    """Gemma2RMSNorm.forward: times one plus the weight, in float32, cast back at the end."""
    output = scaled(tape, spec.size, tape.to(x, "fp32"))
    weight = weights.weight(spec)
    assert weight is not None
    output = mul(tape, output, add_constant(tape, tape.to(weight, "fp32")))
    return tape.to(output, x.dtype)


def weight_last(tape: Tape, weights: Weights, spec: Norm, x: Tensor) -> Tensor:
    """Llama4TextRMSNorm.forward: in float32, cast back, with the weight as second factor."""
    output = unit(tape, spec.size, x)
    weight = weights.weight(spec)
    assert weight is not None
    return mul(tape, output, weight)


def unit(tape: Tape, size: int, x: Tensor) -> Tensor:
    """Llama4TextL2Norm.forward: in float32, cast back, without a weight."""
    return tape.to(scaled(tape, size, tape.to(x, "fp32")), x.dtype)


def scaled(tape: Tape, size: int, hidden: Tensor) -> Tensor:
    """`hidden * rsqrt(hidden.pow(2).mean(-1, keepdim=True) + eps)`."""
    rows = hidden.elements // size
    inverse = rsqrt(tape, add_constant(tape, mean(tape, power(tape, hidden), rows)))
    return mul(tape, hidden, inverse)


def promoted(tape: Tape, weights: Weights, spec: Norm, hidden: Tensor) -> Tensor:
    """T5LayerNorm.forward: the uncast input times a float32 factor gives float32, which is cast to
    the weight's dtype if that has 16 bits."""
    weight = weights.weight(spec)
    assert weight is not None
    variance = mean(tape, power(tape, tape.to(hidden, "fp32")), hidden.elements // spec.size)
    hidden = mul(tape, hidden, rsqrt(tape, add_constant(tape, variance)))
    if weight.dtype in ("bf16", "fp16"):
        hidden = tape.to(hidden, weight.dtype)
    return mul(tape, weight, hidden)


def layer(tape: Tape, weights: Weights, spec: Norm, x: Tensor) -> Tensor:
    """nn.LayerNorm: one kernel."""
    return layer_norm(tape, x, weights.weight(spec), weights.bias(spec), spec.size)


def layer_float32(tape: Tape, weights: Weights, spec: Norm, x: Tensor) -> Tensor:
    """OlmoLayerNorm.forward: the kernel in float32, cast back."""
    output = layer_norm(
        tape, tape.to(x, "fp32"), weights.weight(spec), weights.bias(spec), spec.size
    )
    return tape.to(output, x.dtype)


def layer_plain(tape: Tape, weights: Weights, spec: Norm, hidden: Tensor) -> Tensor:
    """CohereLayerNorm.forward: in float32 in separate operations, times the weight, then cast
    back."""
    given = hidden.dtype
    hidden = tape.to(hidden, "fp32")
    rows = hidden.elements // spec.size
    average = mean(tape, hidden, rows)
    variance = mean(tape, power(tape, subtract(tape, hidden, average)), rows)
    hidden = mul(tape, subtract(tape, hidden, average), rsqrt(tape, add_constant(tape, variance)))
    weight = weights.weight(spec)
    assert weight is not None
    hidden = mul(tape, tape.to(weight, "fp32"), hidden)
    return tape.to(hidden, given)


#: The function of each kind of norm.
NORMS: Final[dict[str, Callable[[Tape, Weights, Norm, Tensor], Tensor]]] = {
    "rms": root_mean_square,
    "rms-cast-last": cast_last,
    "rms-one-plus": one_plus,
    "rms-weight-last": weight_last,
    "rms-promoted": promoted,
    "layer": layer,
    "layer-fp32": layer_float32,
    "layer-plain": layer_plain,
}
