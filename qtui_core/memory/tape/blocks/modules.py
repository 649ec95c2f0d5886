"""Modules of a layer: linear layers and embedding tables under the plan, dense, quantized, with a
low-rank adapter (peft 0.21); norms, by `Norm.kind`; feed-forward parts, by `Mlp.style`, and their
activation functions (ACT2FN of transformers.activations).

An activation function with a kernel of its own keeps one tensor for the backward pass. One that is
composed of several operations keeps a tensor for each of them that needs one, which makes gelu_new
several times as expensive as gelu.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from qtui_core.errors import UsageError
from qtui_core.memory.replay.record import Component, Label
from qtui_core.memory.shape.model_shape import Embedding, Linear, Mlp, Norm
from qtui_core.memory.shape.packings import STORED
from qtui_core.memory.shape.weights import BLOCK
from qtui_core.memory.tape.blocks.weights import LinearWeights, Weights, retype
from qtui_core.memory.tape.operations import embedding, layer_norm, linear, rms_norm
from qtui_core.memory.tape.tensors import EPS, SCALE, Buffer, Gradients, Tensor

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
    spec: Linear, own: LinearWeights, x: Tensor, label: Label | str = "mm", *, turned: bool = False
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


# ---------------------------------------------------------------------- norms


def normalize(weights: Weights, spec: Norm | None, x: Tensor) -> Tensor:
    """The norm `spec` of `x`, over its last `spec.size` elements; `x` itself if there is none."""
    if spec is None:
        return x
    tape = x.tape
    before, tape.path = tape.path, spec.name
    weight, kernels = weights.find(f"{spec.name}.weight"), weights.plan.kernels
    if spec.kind == "layer":
        result = layer_norm(x, weight, weights.find(f"{spec.name}.bias"), spec.size)
    elif spec.kind == "rms" and kernels != "torch":
        assert weight is not None
        result = rms_norm(x, weight, spec.size, liger=kernels == "liger")
    else:
        result = NORMS[spec.kind](x, weight, spec.size)
    tape.path = before
    return result


def root_mean_square(
    x: Tensor, weight: Tensor | None, size: int, *, cast_last: bool = False
) -> Tensor:
    """LlamaRMSNorm.forward: in float32, cast back, then times the weight; Olmo2RMSNorm.forward is
    `cast_last`. Its variance and the float32 result keep their names until it returns."""
    given = x.dtype
    x = x.to("fp32")
    variance = x.pow(2).mean(x.elements // size)
    x = x * (variance + EPS).rsqrt()
    if weight is None:
        return x.to(given)
    return (weight * x).to(given) if cast_last else weight * x.to(given)


def one_plus(x: Tensor, weight: Tensor, size: int) -> Tensor:
    """Gemma2RMSNorm.forward: times one plus the weight, in float32, cast back at the end."""
    output = _scaled(size, x.to("fp32"))
    output = output * (1.0 + weight.to("fp32"))
    return output.to(x.dtype)


def powered(x: Tensor, weight: Tensor | None, size: int) -> Tensor:
    """Gemma4RMSNorm.forward: all in float32, with a power for the root, cast back at the end."""
    wide = x.to("fp32")
    mean_squared = wide.pow(2).mean(x.elements // size) + EPS
    output = wide * mean_squared.pow(-0.5)
    del wide, mean_squared  # names of _norm, which has returned
    output = output if weight is None else output * weight.to("fp32")
    return output.to(x.dtype)


def unit(size: int, x: Tensor) -> Tensor:
    """Llama4TextL2Norm.forward: in float32, cast back, without a weight."""
    return _scaled(size, x.to("fp32")).to(x.dtype)


def _scaled(size: int, x: Tensor) -> Tensor:
    """`x * rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)`."""
    return x * (x.pow(2).mean(x.elements // size) + EPS).rsqrt()


def layer_plain(x: Tensor, weight: Tensor, size: int) -> Tensor:
    """CohereLayerNorm.forward: in float32 in separate operations, times the weight, then cast
    back."""
    given = x.dtype
    x = x.to("fp32")
    average = x.mean(x.elements // size)
    variance = (x - average).pow(2).mean(x.elements // size)
    x = (x - average) * (variance + EPS).rsqrt()
    x = weight.to("fp32") * x
    return x.to(given)


#: The function of each kind of norm that is no kernel of its own.
NORMS: Final[dict[str, Callable[..., Tensor]]] = {
    "rms": root_mean_square, "rms-cast-last": partial(root_mean_square, cast_last=True),
    "rms-one-plus": one_plus, "rms-power": powered, "layer-plain": layer_plain,
    "rms-weight-last": lambda x, weight, size: unit(size, x) * weight,
}  # fmt: skip


# ---------------------------------------------------------------------- feed-forward parts

#: Kernels whose gradient is computed from their input, and their names in torch.
_FROM_INPUT: Final = {
    "gelu": "gelu", "gelu_pytorch_tanh": "gelu", "silu": "silu", "swish": "silu", "mish": "mish",
    "leaky_relu": "leaky_relu", "relu6": "hardtanh",
}  # fmt: skip

#: Kernels whose gradient is computed from their output.
_FROM_OUTPUT: Final = ("relu", "tanh", "sigmoid")


def _gelu_new(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + (0.79788 * (x + 0.044715 * x.pow(3.0))).tanh())


#: Functions of several operations. Each is a single expression, as in the real code, so that every
#: intermediate result is freed when the next exists.
_COMPOSED: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "gelu_new": _gelu_new,
    "gelu_accurate": _gelu_new,
    "gelu_fast": lambda x: 0.5 * x * (1.0 + (x * 0.79788 * (1.0 + 0.044715 * x * x)).tanh()),
    "quick_gelu": lambda x: x * (1.702 * x).sigmoid(),
    "relu2": lambda x: x.from_output("relu").pow(2),
    "linear": lambda x: x,
}


def activation(name: str, x: Tensor) -> Tensor:
    """The activation function `name` of config.json, elementwise.

    Raises UsageError for an unknown function.
    """
    if name in _FROM_INPUT:
        return x.from_input(_FROM_INPUT[name])
    if name in _FROM_OUTPUT:
        return x.from_output(name)
    if name in _COMPOSED:
        return _COMPOSED[name](x)
    raise UsageError(
        f"The activation function {name!r} is not known here. Use --trace, which runs the class of "
        "transformers itself."
    )


def gated(weights: Weights, spec: Mlp | None, x: Tensor) -> Tensor:
    """LlamaMLP.forward: `down(act(gate(x)) * up(x))`. Without a gate, `down(act(up(x)))`."""
    assert spec is not None
    if spec.gate is None:
        return plain(weights, spec, x)
    activated = activation(spec.activation, project(weights, spec.gate, x))
    product = activated * project(weights, spec.up, x)
    del activated
    return project(weights, spec.down, product)


def gemma3n(weights: Weights, spec: Mlp, hidden: Tensor) -> Tensor:
    """Gemma3nTextMLP.forward: all products have names until it returns."""
    gate_proj = project(weights, spec.gate, hidden)
    if spec.style == "gemma3n-sparse":
        gate_proj = _gaussian_topk(gate_proj, gate_proj.elements // spec.down.inputs)
    activations = activation(spec.activation, gate_proj)
    up_proj = project(weights, spec.up, hidden)
    return project(weights, spec.down, activations * up_proj)


def _gaussian_topk(inputs: Tensor, rows: int) -> Tensor:
    """What is so many standard deviations above the mean of its row; zero elsewhere."""
    tape = inputs.tape
    tape.operation("erfinv")
    _target = multiplier = tape.new(1, "fp32", "_to_copy")
    for step in ("mul", "sub", "erfinv", "mul", "mul", "add"):
        multiplier = tape.new(1, "fp32", step)
    multiplier = multiplier.to(inputs.dtype)
    mean = inputs.mean(rows)
    deviation = inputs.std(rows)
    cutoff = mean + deviation.op("mul", "mul", saved=multiplier)
    return (inputs - cutoff).from_output("relu")


def fused(weights: Weights, spec: Mlp, hidden: Tensor) -> Tensor:
    """Phi3MLP.forward: gate and up are halves of one product."""
    up = project(weights, spec.fused, hidden)
    gate, up = up.split(up.elements // 2, up.elements // 2)
    up = up * activation(spec.activation, gate)
    return project(weights, spec.down, up)


def plain(weights: Weights, spec: Mlp, hidden: Tensor) -> Tensor:
    """GPT2MLP.forward: `dropout(down(act(up(x))))`; each result takes the name of the one
    before."""
    hidden = project(weights, spec.up, hidden)
    hidden = activation(spec.activation, hidden)
    hidden = project(weights, spec.down, hidden)
    return hidden.dropout(spec.dropout)


#: The function of each style of dense feed-forward part.
MLPS: Final[dict[str, Callable[[Weights, Any, Tensor], Tensor]]] = {
    "llama": gated, "phi3": fused,
    "seed_oss": lambda weights, spec, x: gated(weights, spec, x).dropout(spec.dropout),
    "gemma3n": gemma3n, "gemma3n-sparse": gemma3n,
}  # fmt: skip


# ---------------------------------------------------------------------- over quantized weights
# Of bitsandbytes 0.50, 4 bits (Linear4bit) and LLM.int8 (Linear8bitLt); and those that a checkpoint
# stores packed, by the kind of layout: gptqmodel 7.3 (nn_modules/qlinear: torch.py, tritonv2.py,
# gemm_awq.py), transformers 5.23 (integrations/finegrained_fp8.py, deepgemm.py, fbgemm_fp8.py), hqq
# (core/quantize.py).

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
