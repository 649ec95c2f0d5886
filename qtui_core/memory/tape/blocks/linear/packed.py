"""Linear layers over weights that a checkpoint stores packed, by the kind of layout.

gptqmodel 7.3 (nn_modules/qlinear: torch.py, tritonv2.py, gemm_awq.py), transformers 5.23
(integrations/finegrained_fp8.py, deepgemm.py, fbgemm_fp8.py), hqq (core/quantize.py).
"""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.shape.model_shape import Linear
from qtui_core.memory.tape.blocks.linear.weights import LinearWeights
from qtui_core.memory.tape.operations.linear import MM, linear
from qtui_core.memory.tape.operations.pointwise import add
from qtui_core.memory.tape.tape import Gradients, Tape, Tensor

DEQUANTIZED: Final = Label("dequantize")
REPEATED: Final = Label("repeat")
QUANTIZED: Final = Label("per_token_cast_to_fp8")

#: Inputs per scale in per_token_cast_to_fp8 (DeepGEMM).
_TOKEN_GROUP: Final = 128


def linear_packed(tape: Tape, spec: Linear, weights: LinearWeights, x: Tensor) -> Tensor:
    """The layer of `x`, in the dtype of `x`."""
    kind = weights.quant or ""
    if kind in ("fp8", "fbgemm"):
        return _fp8(tape, spec, weights, x)
    if kind == "gptq":
        return _gptq(tape, spec, weights, x)
    return _unpacking(tape, kind, spec, weights, x)


def _gptq(tape: Tape, spec: Linear, weights: LinearWeights, x: Tensor) -> Tensor:
    """TorchLinear and, in training, TritonV2Linear: an ordinary product with the unpacked weight,
    which autograd keeps if the input requires a gradient."""
    weight = tape.new(spec.inputs * spec.outputs, "fp16", DEQUANTIZED)
    if x.dtype != "fp16":
        weight = tape.new(weight.elements, x.dtype, DEQUANTIZED)
    result = linear(tape, x, weight, None, spec.inputs, spec.outputs)
    del weight
    return result if weights.bias is None else add(tape, result, weights.bias)


def _unpacking(tape: Tape, kind: str, spec: Linear, weights: LinearWeights, x: Tensor) -> Tensor:
    """AwqGemmFn and HQQMatmulNoCacheDeq: the weight is unpacked forward and backward, and the input
    is saved though no gradient needs it. hqq unpacks in three steps, each a 16-bit tensor;
    AwqGemmFn copies the weight for each sequence in the backward pass."""
    size, inputs, given = spec.inputs * spec.outputs, x.elements, x.dtype
    tokens = inputs // spec.inputs
    copied = kind.startswith("awq")

    def unpacked() -> Tensor:
        weight = tape.new(size, given, DEQUANTIZED)
        if kind == "hqq":
            less = tape.new(size, given, DEQUANTIZED)
            times = tape.new(size, given, DEQUANTIZED)
            del less
            weight = times
        return weight

    def backward(gradient: Tensor) -> Gradients:
        weight = unpacked()
        each = tape.new(size * weights.plan.batch, gradient.dtype, REPEATED) if copied else None
        result = tape.new(inputs, gradient.dtype, MM)
        del weight, each
        return (result,)

    node = tape.node(kind, (x,), backward)
    tape.save(node, x)
    weight = unpacked()
    result = tape.new(tokens * spec.outputs, given, MM)
    del weight
    result = tape.output(node, result)
    return result if weights.bias is None else add(tape, result, weights.bias)


def _fp8(tape: Tape, spec: Linear, weights: LinearWeights, x: Tensor) -> Tensor:
    """FP8LinearFunction: inputs are quantized for the product, which takes the weight as it is
    stored; the backward pass unpacks the weight, with scales repeated over the rows of a tile."""
    size, inputs, given = spec.inputs * spec.outputs, x.elements, x.dtype
    tokens = inputs // spec.inputs
    columns = -(-spec.inputs // _TOKEN_GROUP)

    def backward(gradient: Tensor) -> Gradients:
        weight = tape.new(size, gradient.dtype, DEQUANTIZED)
        scales = tape.new(spec.outputs * columns, gradient.dtype, DEQUANTIZED)
        del scales
        result = tape.new(inputs, gradient.dtype, MM)
        del weight
        return (result,)

    node = tape.node("fp8_linear", (x,), backward)
    codes = tape.new(inputs, "fp8", QUANTIZED)
    scales = tape.new(tokens * columns, "fp32", QUANTIZED)
    result = tape.new(tokens * spec.outputs, given, MM)
    del codes, scales
    result = tape.output(node, result)
    return result if weights.bias is None else add(tape, result, weights.bias)
