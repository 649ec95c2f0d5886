"""Linear layers of bitsandbytes 0.50: 4 bits (Linear4bit) and LLM.int8 (Linear8bitLt)."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Component, Label
from qtui_core.memory.shape.model_shape import Linear
from qtui_core.memory.shape.storage import BLOCK
from qtui_core.memory.tape.blocks.linear.weights import LinearWeights, retype
from qtui_core.memory.tape.tape import Buffer, Gradients, Tape, Tensor

BIAS: Final = Label("bias", Component.WEIGHTS)
ABSMAX: Final = Label("dequantize_blockwise")
DEQUANTIZED: Final = Label("dequantize_4bit")
MM: Final = Label("mm")
CAST: Final = Label("_to_copy")
QUANTIZED: Final = Label("int8_vectorwise_quant")
ABSOLUTE: Final = Label("abs")
OUTLIERS: Final = Label("ge")
SCALES: Final = Label("mul")
PRODUCT: Final = Label("int8_linear_matmul")
RESULT: Final = Label("int8_mm_dequant")

#: Products of at most this many rows use a kernel that dequantizes on the fly, on every
#: architecture. Up to some hundred rows a table for each architecture decides, beyond that none do
#: (bitsandbytes backends/cuda/ops.py, _gemm_4bit_use_custom_cuda).
FUSED_ROWS: Final = 4


def linear_4bit(tape: Tape, spec: Linear, weights: LinearWeights, x: Tensor) -> Tensor:
    """Linear4bit.forward: casts to the compute dtype, dequantizes the whole weight for the product,
    and casts back. Nothing is saved. The backward pass dequantizes again, to the dtype that the
    weight had before quantization, and casts that to the gradient's dtype."""
    given = x.dtype
    plan = weights.plan
    # bnb_4bit_compute_dtype: the dtype of the model if it has 16 bits, else autocast's.
    compute = plan.dtype if plan.dtype in ("bf16", "fp16") else plan.autocast_dtype
    x = tape.to(x, compute)
    if weights.bias is not None:
        retype(tape, weights.bias, compute, BIAS)
    inputs = x.elements
    size = spec.inputs * spec.outputs
    tokens = inputs // spec.inputs
    blocks = -(-size // BLOCK)
    nested = weights.quant is not None and weights.quant.endswith("-dq")
    source = plan.dtype or compute

    def backward(gradient: Tensor) -> Gradients:
        absmax = tape.new(blocks, "fp32", ABSMAX) if nested else None
        weight = tape.new(size, source, DEQUANTIZED)
        del absmax
        if gradient.dtype != source:
            weight = tape.new(size, gradient.dtype, CAST)
        result = tape.new(inputs, gradient.dtype, MM)  # _unsafe_view does not keep its base
        del weight
        return (result,)

    node = tape.node("gemm_4bit", (x,), backward)
    if tokens > FUSED_ROWS:
        codes = tape.new(blocks, "fp32", ABSMAX) if nested else None
        absmax = tape.new(blocks, "fp32", ABSMAX) if nested else None
        weight = tape.new(size, compute, DEQUANTIZED)
        result = tape.new(tokens * spec.outputs, compute, MM)
        del weight, absmax, codes
    else:
        result = tape.new(tokens * spec.outputs, compute, MM)
    return tape.to(tape.output(node, result), given)


def linear_int8(tape: Tape, spec: Linear, weights: LinearWeights, x: Tensor) -> Tensor:
    """Linear8bitLt.forward (MatMul8bitLt) for an input without outlier columns. Its context keeps
    the input as an attribute, not with save_for_backward: a checkpoint does not see it, and it
    lives as long as the graph."""
    given = x.dtype
    if weights.bias is not None:
        retype(tape, weights.bias, given, BIAS)
    inputs = x.elements
    size = spec.inputs * spec.outputs
    tokens = inputs // spec.inputs
    kept = x.buffer if x.requires_grad and tape.grad else None

    def backward(gradient: Tensor, kept: Buffer | None = kept) -> Gradients:
        weight = tape.new(size, given, CAST)
        scaled = tape.new(spec.outputs, "fp32", SCALES)
        del scaled
        if gradient.dtype != given:
            gradient = tape.new(gradient.elements, given, CAST)
        result = tape.new(inputs, given, MM, view=True)
        del weight
        return (result,)

    node = tape.node("int8_mixed_scaled_mm", (x,), backward)
    half = None if given == "fp16" else tape.new(inputs, "fp16", CAST)
    scales = tape.new(tokens, "fp32", QUANTIZED)
    codes = tape.new(inputs, "int8", QUANTIZED)
    absolute = tape.new(inputs, "fp16", ABSOLUTE)
    outliers = tape.new(inputs, "bool", OUTLIERS)
    del absolute
    _any = tape.new(1, "bool", OUTLIERS)
    del _any, outliers, half
    products = tape.new(tokens * spec.outputs, "int32", PRODUCT)
    result = tape.new(tokens * spec.outputs, "fp16", RESULT)
    if given != "fp16":
        result = tape.new(tokens * spec.outputs, given, CAST)
    del products, codes, scales
    return tape.output(node, result)
