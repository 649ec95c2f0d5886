"""Linear layers over quantized weights: of bitsandbytes 0.50, 4 bits (Linear4bit) and LLM.int8
(Linear8bitLt); and those that a checkpoint stores packed, by the kind of layout: gptqmodel 7.3
(nn_modules/qlinear: torch.py, tritonv2.py, gemm_awq.py), transformers 5.23
(integrations/finegrained_fp8.py, deepgemm.py, fbgemm_fp8.py), hqq (core/quantize.py)."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Component, Label
from qtui_core.memory.shape.model_shape import Linear
from qtui_core.memory.shape.weights import BLOCK
from qtui_core.memory.tape.blocks.weights import LinearWeights, retype
from qtui_core.memory.tape.operations import linear
from qtui_core.memory.tape.tensors import Buffer, Gradients, Tensor

BIAS: Final = Label("bias", Component.WEIGHTS)


#: Products of at most this many rows use a kernel that dequantizes on the fly, on every
#: architecture. Up to some hundred rows a table for each architecture decides, beyond that none do
#: (bitsandbytes backends/cuda/ops.py, _gemm_4bit_use_custom_cuda).
FUSED_ROWS: Final = 4


def linear_4bit(spec: Linear, weights: LinearWeights, x: Tensor) -> Tensor:
    """Linear4bit.forward: casts to the compute dtype, dequantizes the whole weight for the product,
    and casts back. Nothing is saved. The backward pass dequantizes again, to the dtype that the
    weight had before quantization, and casts that to the gradient's dtype."""
    tape, given = x.tape, x.dtype
    plan = weights.plan
    # bnb_4bit_compute_dtype: the dtype of the model if it has 16 bits, else autocast's.
    compute = plan.dtype if plan.dtype in ("bf16", "fp16") else plan.autocast_dtype
    x = x.to(compute)
    if weights.bias is not None:
        retype(weights.bias, compute, BIAS)
    inputs = x.elements
    size = spec.inputs * spec.outputs
    tokens = inputs // spec.inputs
    blocks = -(-size // BLOCK)
    nested = weights.quant is not None and weights.quant.endswith("-dq")
    source = plan.dtype or compute

    def backward(gradient: Tensor) -> Gradients:
        absmax = tape.new(blocks, "fp32", "dequantize_blockwise") if nested else None
        weight = tape.new(size, source, "dequantize_4bit")
        del absmax
        if gradient.dtype != source:
            weight = tape.new(weight.elements, gradient.dtype, "_to_copy")
        return (tape.new(inputs, gradient.dtype, "mm"),)  # _unsafe_view does not keep its base

    node = tape.node("gemm_4bit", (x,), backward)
    held = []
    if tokens > FUSED_ROWS:
        if nested:
            held = [tape.new(blocks, "fp32", "dequantize_blockwise") for _ in range(2)]
        held.append(tape.new(size, compute, "dequantize_4bit"))
    result = tape.new(tokens * spec.outputs, compute, "mm")
    del held
    return tape.output(node, result).to(given)


def linear_int8(spec: Linear, weights: LinearWeights, x: Tensor, *, turned: bool = False) -> Tensor:
    """Linear8bitLt.forward (MatMul8bitLt) for an input without outlier columns. Its context keeps
    the input as an attribute, not with save_for_backward: a checkpoint does not see it, and it
    lives as long as the graph. `turned`: the gradient has another layout than the result."""
    tape, given = x.tape, x.dtype
    if weights.bias is not None:
        retype(weights.bias, given, BIAS)
    inputs = x.elements
    size = spec.inputs * spec.outputs
    tokens = inputs // spec.inputs
    kept = x.buffer if x.requires_grad and tape.grad else None

    def backward(gradient: Tensor, kept: Buffer | None = kept) -> Gradients:
        _copied = tape.new(gradient.elements, gradient.dtype, "clone") if turned else None
        _weight = tape.new(size, given, "_to_copy")
        tape.new(spec.outputs, "fp32", "mul")  # scaled
        if gradient.dtype != given:
            gradient = tape.new(gradient.elements, given, "_to_copy")
        return (tape.new(inputs, given, "mm", view=True),)

    node = tape.node("int8_mixed_scaled_mm", (x,), backward)
    half = None if given == "fp16" else tape.new(inputs, "fp16", "_to_copy")
    _scales = tape.new(tokens, "fp32", "int8_vectorwise_quant")
    _codes = tape.new(inputs, "int8", "int8_vectorwise_quant")
    absolute = tape.new(inputs, "fp16", "abs")
    outliers = tape.new(inputs, "bool", "ge")
    del absolute
    tape.new(1, "bool", "ge")  # any
    del outliers, half
    _products = tape.new(tokens * spec.outputs, "int32", "int8_linear_matmul")
    result = tape.new(tokens * spec.outputs, "fp16", "int8_mm_dequant")
    if given != "fp16":
        result = tape.new(tokens * spec.outputs, given, "_to_copy")
    return tape.output(node, result)


#: Inputs per scale in per_token_cast_to_fp8 (DeepGEMM).
_TOKEN_GROUP: Final = 128


def linear_packed(spec: Linear, weights: LinearWeights, x: Tensor) -> Tensor:
    """The layer of `x`, in the dtype of `x`."""
    kind = weights.quant or ""
    if kind in ("fp8", "fbgemm"):
        result = _fp8(spec, x)
    elif kind == "gptq":
        result = _gptq(spec, x)
    else:
        result = _unpacking(kind, spec, weights.plan.batch, x)
    return result if weights.bias is None else result + weights.bias


def _gptq(spec: Linear, x: Tensor) -> Tensor:
    """TorchLinear and, in training, TritonV2Linear: an ordinary product with the unpacked weight,
    which autograd keeps if the input requires a gradient."""
    tape = x.tape
    weight = tape.new(spec.inputs * spec.outputs, "fp16", "dequantize")
    if x.dtype != "fp16":
        weight = tape.new(weight.elements, x.dtype, "dequantize")
    return linear(x, weight, None, spec.inputs, spec.outputs)


def _unpacking(kind: str, spec: Linear, batch: int, x: Tensor) -> Tensor:
    """AwqGemmFn and HQQMatmulNoCacheDeq: the weight is unpacked forward and backward, and the input
    is saved though no gradient needs it. hqq unpacks in three steps, each a 16-bit tensor;
    AwqGemmFn copies the weight for each sequence in the backward pass."""
    tape = x.tape
    size, inputs, given = spec.inputs * spec.outputs, x.elements, x.dtype
    tokens = inputs // spec.inputs
    copied = kind.startswith("awq")

    def unpacked() -> Tensor:
        weight = tape.new(size, given, "dequantize")
        if kind == "hqq":
            _less = tape.new(size, given, "dequantize")
            return tape.new(size, given, "dequantize")
        return weight

    def backward(gradient: Tensor) -> Gradients:
        _weight = unpacked()
        _each = tape.new(size * batch, gradient.dtype, "repeat") if copied else None
        return (tape.new(inputs, gradient.dtype, "mm"),)

    node = tape.node(kind, (x,), backward)
    tape.save(node, x)
    _weight = unpacked()
    return tape.output(node, tape.new(tokens * spec.outputs, given, "mm"))


def _fp8(spec: Linear, x: Tensor) -> Tensor:
    """FP8LinearFunction: inputs are quantized for the product, which takes the weight as it is
    stored; the backward pass unpacks the weight, with scales repeated over the rows of a tile."""
    tape = x.tape
    size, inputs, given = spec.inputs * spec.outputs, x.elements, x.dtype
    tokens = inputs // spec.inputs
    columns = -(-spec.inputs // _TOKEN_GROUP)

    def backward(gradient: Tensor) -> Gradients:
        _weight = tape.new(size, gradient.dtype, "dequantize")
        tape.new(spec.outputs * columns, gradient.dtype, "dequantize")  # scales
        return (tape.new(inputs, gradient.dtype, "mm"),)

    node = tape.node("fp8_linear", (x,), backward)
    _codes = tape.new(inputs, "fp8", "per_token_cast_to_fp8")
    _scales = tape.new(tokens * columns, "fp32", "per_token_cast_to_fp8")
    return tape.output(node, tape.new(tokens * spec.outputs, given, "mm"))
