"""Torch's kernels on CUDA that make several tensors at once: attention, the softmax of scores,
layer norm and cross entropy."""

from __future__ import annotations

from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.replay.record import Component, Label
from qtui_core.memory.tape.tensors import Gradients, Tensor

FLASH: Final = "_scaled_dot_product_flash_attention"
EFFICIENT: Final = "_scaled_dot_product_efficient_attention"
LAYER_NORM: Final = "native_layer_norm"
RANDOM_STATE: Final = Label("philox seed and offset", Component.TEMPORARIES)
WORKSPACE: Final = Label("attention backward workspace", Component.TEMPORARIES)
SOFTMAX_PRODUCT: Final = Label("gradient times softmax", Component.TEMPORARIES)
LOG_SOFTMAX: Final = Label("_log_softmax", Component.LOSS)
LOG_SOFTMAX_BACKWARD: Final = Label("_log_softmax_backward_data", Component.LOSS)
NLL: Final = Label("nll_loss_forward", Component.LOSS)
NLL_BACKWARD: Final = Label("nll_loss_backward", Component.LOSS)


@dataclass(frozen=True)
class Heads:
    """Sizes of an attention: sequences, queries and keys of a sequence, heads, elements of a
    head."""

    batch: int
    queries: int
    keys: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int = 0

    @property
    def of_value(self) -> int:
        """Elements of a head of values."""
        return self.value_dim or self.head_dim


def up(value: int, multiple: int) -> int:
    """The smallest multiple that is not smaller than `value`."""
    return -(-value // multiple) * multiple


def flash(q: Tensor, k: Tensor, v: Tensor, sizes: Heads) -> Tensor:
    """Flash attention: saves q, k, v, the result, the log-sum-exp (float32, one per query and head)
    and the state of the random generator. Keys and values are expanded to all heads only by its
    backward kernel (aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_fwd and
    mha_bwd)."""
    tape, dtype = q.tape, q.dtype
    batch, heads = sizes.batch, sizes.heads
    parts = q.elements, k.elements, v.elements
    rows = up(sizes.queries, 128)
    width = up(sizes.head_dim, 32 if sizes.head_dim <= 128 else 64)
    grouped = sizes.kv_heads != heads
    expanded = batch * sizes.keys * heads * sizes.head_dim

    def backward(gradient: Tensor) -> Gradients:
        results = tuple(tape.new(size, dtype, f"{FLASH}_backward") for size in parts)
        _softmax_d = tape.new(batch * heads * rows, "fp32", WORKSPACE)
        _dq_accum = tape.new(batch * rows * heads * width, "fp32", WORKSPACE)
        if grouped:
            _dk_expanded = tape.new(expanded, dtype, WORKSPACE)
            _dv_expanded = tape.new(expanded, dtype, WORKSPACE)
        return results

    node = tape.node(FLASH, (q, k, v), backward)
    output = tape.new(batch * heads * sizes.queries * sizes.of_value, dtype, FLASH)
    sums = tape.new(batch * heads * sizes.queries, "fp32", FLASH)
    state = tape.new(2, "int64", RANDOM_STATE)
    unused = tape.new(1, "int64", RANDOM_STATE)
    tape.save(node, q, k, v, output, sums, state, unused)
    return tape.output(node, output)


def efficient(q: Tensor, k: Tensor, v: Tensor, sizes: Heads, mask: Tensor | None) -> Tensor:
    """Memory-efficient attention (attention_backward.cu), for float32 and with a mask. Keys and
    values are those of all heads; the additive `mask` is saved too. The log-sum-exp is made only if
    there will be a gradient (should_compute_logsumexp in attention.cpp)."""
    tape, dtype = q.tape, q.dtype
    if sizes.kv_heads != sizes.heads:
        k = k.repeat(sizes.heads // sizes.kv_heads)
        v = v.repeat(sizes.heads // sizes.kv_heads)
    pairs = sizes.batch * sizes.heads
    queries = sizes.queries
    parts = q.elements, k.elements, v.elements
    workspace = pairs * up(queries, 64) * up(sizes.head_dim, 64)
    half = SIZES[dtype] == 2

    def backward(gradient: Tensor) -> Gradients:
        results = tuple(tape.new(size, dtype, f"{EFFICIENT}_backward") for size in parts)
        if half:
            _delta = tape.new(pairs * queries, "fp32", WORKSPACE)
            _accumulators = tape.new(workspace, "fp32", WORKSPACE)
        else:
            product = tape.new(parts[0], dtype, WORKSPACE)
            delta = tape.new(pairs * queries, "fp32", WORKSPACE)
            del product
            _contiguous = tape.new(pairs * queries, "fp32", WORKSPACE)
            del delta
        return *results, None

    node = tape.node(EFFICIENT, (q, k, v, mask), backward)
    output = tape.new(pairs * queries * sizes.of_value, dtype, EFFICIENT)
    sums = None if node is None else tape.new(pairs * up(queries, 32), "fp32", EFFICIENT)
    seed = tape.new(1, "int64", RANDOM_STATE)
    offset = tape.new(1, "int64", RANDOM_STATE)
    tape.save(node, q, k, v, mask, output, sums, seed, offset)
    return tape.output(node, output)


def softmax(x: Tensor, dtype: str | None = "fp32") -> Tensor:
    """`F.softmax(x, dtype=...)`; saves its result. For float32 the kernel reads float16 directly,
    other dtypes are cast first (Tensor softmax in ATen/native/SoftMax.cpp). If no dtype is named
    the result has the input's, or float32 under autocast, on whose list it is.

    The backward kernel first multiplies gradient and result, in memory of its own
    (softmax_backward_cuda_out in ATen/native/cuda/SoftMax.cu).
    """
    tape = x.tape
    if dtype is None:
        x = x.cast_high()
    elif (x.dtype, dtype) != ("fp16", "fp32"):
        x = x.to(dtype)
    elements, given = x.elements, x.dtype
    result = dtype or given

    def backward(gradient: Tensor) -> Gradients:
        of_x = tape.new(elements, given, "_softmax_backward_data")
        _product = tape.new(elements, result, SOFTMAX_PRODUCT)
        return (of_x,)

    node = tape.node("_softmax", (x,), backward)
    output = tape.new(elements, result, "_softmax")
    tape.save(node, output)
    return tape.output(node, output)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, size: int) -> Tensor:
    """`F.layer_norm` over the last `size` elements: saves its input, mean and reciprocal deviation
    (float32, one per row). On autocast's float32 list."""
    tape = x.tape
    bias = None if bias is None else bias.cast_high()
    weight = None if weight is None else weight.cast_high()
    x = x.cast_high()
    elements, dtype, rows = x.elements, x.dtype, x.elements // size
    x_wanted = x.requires_grad
    weight_type = weight.dtype if weight is not None and weight.requires_grad else None
    bias_type = bias.dtype if bias is not None and bias.requires_grad else None

    def backward(gradient: Tensor) -> Gradients:
        of_x = tape.new(elements, dtype, f"{LAYER_NORM}_backward") if x_wanted else None
        of_weight = tape.new(size, weight_type, f"{LAYER_NORM}_backward") if weight_type else None
        of_bias = tape.new(size, bias_type, f"{LAYER_NORM}_backward") if bias_type else None
        return of_x, of_weight, of_bias

    node = tape.node(LAYER_NORM, (x, weight, bias), backward)
    tape.save(node, x, weight, bias)
    output = tape.new(elements, dtype, LAYER_NORM)
    average = tape.new(rows, "fp32", LAYER_NORM)
    deviation = tape.new(rows, "fp32", LAYER_NORM)
    tape.save(node, average, deviation)
    return tape.output(node, output)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """`F.cross_entropy(logits, labels)`: the mean or sum, one element, and the total weight. Under
    autocast only its second part is cast to float32: the first gets the dtype of the logits
    (cross_entropy_loss in aten/src/ATen/native/LossNLL.cpp)."""
    tape = logits.tape
    logarithms = logits.op(
        "_log_softmax", LOG_SOFTMAX_BACKWARD, own=True, keeps=True, made=LOG_SOFTMAX
    ).cast_high()
    size, dtype = logarithms.elements, logarithms.dtype
    node = tape.node(
        "nll_loss_forward", (logarithms,), lambda _: (tape.new(size, dtype, NLL_BACKWARD),)
    )
    tape.save(node, logarithms, labels)
    loss = tape.new(1, dtype, NLL)
    weight = tape.new(1, dtype, NLL)
    tape.save(node, weight)
    return tape.output(node, loss)
