"""Torch's attention kernels on CUDA, the attention composed of other operations ("math"), which
torch uses if no kernel fits, and the softmax of scores."""

from __future__ import annotations

from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.replay.record import Component, Label
from qtui_core.memory.tape.operations.linear import bmm
from qtui_core.memory.tape.operations.pointwise import clone, scale
from qtui_core.memory.tape.operations.views import repeat
from qtui_core.memory.tape.tape import Gradients, Tape, Tensor

FLASH: Final = Label("_scaled_dot_product_flash_attention")
FLASH_BACKWARD: Final = Label("_scaled_dot_product_flash_attention_backward")
EFFICIENT: Final = Label("_scaled_dot_product_efficient_attention")
EFFICIENT_BACKWARD: Final = Label("_scaled_dot_product_efficient_attention_backward")
RANDOM_STATE: Final = Label("philox seed and offset", Component.TEMPORARIES)
WORKSPACE: Final = Label("attention backward workspace", Component.TEMPORARIES)
SOFTMAX: Final = Label("_softmax")
SOFTMAX_BACKWARD: Final = Label("_softmax_backward_data")
SOFTMAX_PRODUCT: Final = Label("gradient times softmax", Component.TEMPORARIES)


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


def flash(tape: Tape, q: Tensor, k: Tensor, v: Tensor, sizes: Heads) -> Tensor:
    """Flash attention: saves q, k, v, the result, the log-sum-exp (float32, one per query and head)
    and the state of the random generator. Keys and values are expanded to all heads only by its
    backward kernel (aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_fwd and
    mha_bwd)."""
    dtype = q.dtype
    batch, heads = sizes.batch, sizes.heads
    q_size, k_size, v_size = q.elements, k.elements, v.elements
    rows = up(sizes.queries, 128)
    width = up(sizes.head_dim, 32 if sizes.head_dim <= 128 else 64)
    grouped = sizes.kv_heads != heads
    expanded = batch * sizes.keys * heads * sizes.head_dim

    def backward(gradient: Tensor) -> Gradients:
        of_q = tape.new(q_size, dtype, FLASH_BACKWARD)
        of_k = tape.new(k_size, dtype, FLASH_BACKWARD)
        of_v = tape.new(v_size, dtype, FLASH_BACKWARD)
        _softmax_d = tape.new(batch * heads * rows, "fp32", WORKSPACE)
        _dq_accum = tape.new(batch * rows * heads * width, "fp32", WORKSPACE)
        if grouped:
            _dk_expanded = tape.new(expanded, dtype, WORKSPACE)
            _dv_expanded = tape.new(expanded, dtype, WORKSPACE)
        return of_q, of_k, of_v

    node = tape.node("_scaled_dot_product_flash_attention", (q, k, v), backward)
    output = tape.new(batch * heads * sizes.queries * sizes.of_value, dtype, FLASH)
    sums = tape.new(batch * heads * sizes.queries, "fp32", FLASH)
    state = tape.new(2, "int64", RANDOM_STATE)
    unused = tape.new(1, "int64", RANDOM_STATE)
    tape.save(node, q, k, v, output, sums, state, unused)
    return tape.output(node, output)


def efficient(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, sizes: Heads, mask: Tensor | None
) -> Tensor:
    """Memory-efficient attention (attention_backward.cu), for float32 and with a mask. Keys and
    values are those of all heads; the additive `mask` is saved too. If the mask requires a gradient
    (the biases of T5), it exists for every head, with rows padded to a multiple of 16 elements. The
    log-sum-exp is made only if there will be a gradient (should_compute_logsumexp in
    attention.cpp)."""
    dtype = q.dtype
    of_pairs = 0
    if mask is not None and mask.requires_grad:
        of_pairs = sizes.batch * sizes.heads * sizes.queries * up(sizes.keys, 16)
    mask_size = 0 if mask is None else mask.elements
    if sizes.kv_heads != sizes.heads:
        k = repeat(tape, k, sizes.heads // sizes.kv_heads)
        v = repeat(tape, v, sizes.heads // sizes.kv_heads)
    pairs = sizes.batch * sizes.heads
    queries = sizes.queries
    q_size, k_size, v_size = q.elements, k.elements, v.elements
    workspace = pairs * up(queries, 64) * up(sizes.head_dim, 64)
    half = SIZES[dtype] == 2

    def backward(gradient: Tensor) -> Gradients:
        of_q = tape.new(q_size, dtype, EFFICIENT_BACKWARD)
        of_k = tape.new(k_size, dtype, EFFICIENT_BACKWARD)
        of_v = tape.new(v_size, dtype, EFFICIENT_BACKWARD)
        of_mask = None
        if of_pairs:
            of_mask = tape.alias(tape.new(of_pairs, dtype, EFFICIENT_BACKWARD), mask_size)
        if half:
            _delta = tape.new(pairs * queries, "fp32", WORKSPACE)
            _accumulators = tape.new(workspace, "fp32", WORKSPACE)
        else:
            product = tape.new(q_size, dtype, WORKSPACE)
            delta = tape.new(pairs * queries, "fp32", WORKSPACE)
            del product
            _contiguous = tape.new(pairs * queries, "fp32", WORKSPACE)
            del delta
        return of_q, of_k, of_v, of_mask

    node = tape.node("_scaled_dot_product_efficient_attention", (q, k, v, mask), backward)
    output = tape.new(pairs * queries * sizes.of_value, dtype, EFFICIENT)
    sums = None if node is None else tape.new(pairs * up(queries, 32), "fp32", EFFICIENT)
    seed = tape.new(1, "int64", RANDOM_STATE)
    offset = tape.new(1, "int64", RANDOM_STATE)
    tape.save(node, q, k, v, mask, output, sums, seed, offset)
    return tape.output(node, output)


def softmax(tape: Tape, x: Tensor, *, plain: bool = False) -> Tensor:
    """`F.softmax(x, dtype=torch.float32)`; saves its result. The kernel reads float16 directly,
    other dtypes are cast first (Tensor softmax in ATen/native/SoftMax.cpp). A `plain` softmax names
    no dtype: its result has the input's, or float32 under autocast, on whose list it is.

    The backward kernel first multiplies gradient and result, in memory of its own
    (softmax_backward_cuda_out in ATen/native/cuda/SoftMax.cu).
    """
    if plain:
        x = tape.cast_high(x)
    elif x.dtype != "fp16":
        x = tape.to(x, "fp32")
    elements, dtype = x.elements, x.dtype
    result = dtype if plain else "fp32"

    def backward(gradient: Tensor) -> Gradients:
        of_x = tape.new(elements, dtype, SOFTMAX_BACKWARD)
        _product = tape.new(elements, result, SOFTMAX_PRODUCT)
        return (of_x,)

    node = tape.node("_softmax", (x,), backward)
    output = tape.new(elements, result, SOFTMAX)
    tape.save(node, output)
    return tape.output(node, output)


SAFE: Final = Label("_safe_softmax")
CAST: Final = Label("_to_copy")


def composed(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, sizes: Heads, mask: Tensor | None
) -> Tensor:
    """_scaled_dot_product_attention_math (aten/src/ATen/native/transformers/attention.cpp): 16-bit
    inputs are cast to float32, and so are scores and weights; if there are fewer heads of keys,
    they are copied for all heads of queries. The mask is added in place. Weights are also cast to
    the given dtype, although they are not used."""
    given = q.dtype
    pairs = sizes.batch * sizes.heads
    times = sizes.heads // sizes.kv_heads
    query_acc, key_acc, value_acc = tape.to(q, "fp32"), tape.to(k, "fp32"), tape.to(v, "fp32")
    query, key = scale(tape, query_acc), scale(tape, key_acc)
    rows = clone(tape, query) if sizes.batch > 1 else query
    scores = bmm(tape, rows, repeat(tape, key, times), pairs * sizes.queries * sizes.keys)
    del rows, key
    weights = softmax(tape, scores)
    _masked = tape.new(weights.elements, "bool", SAFE)
    _chosen = tape.new(weights.elements, "fp32", SAFE)
    del _masked, _chosen, scores
    columns = repeat(tape, value_acc, times)
    output = bmm(tape, weights, columns, pairs * sizes.queries * sizes.of_value)
    del columns
    result = tape.to(output, given)
    if given != "fp32":
        _cast = tape.new(weights.elements, given, CAST)
    return result
