"""Operations on several tensors: products, look-ups, concatenations, and what GPUs that share
layers send each other; and kernels on CUDA that make several tensors at once: torch's for
attention, the softmax of scores, layer norm and cross entropy, and those that overwrite inputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.replay.record import Component, Label
from qtui_core.memory.shape.weights import BLOCK
from qtui_core.memory.tape.tape import Tape
from qtui_core.memory.tape.tensors import Buffer, Gradients, Tensor, wider

PARTS: Final = Label("all_gather_into_tensor", Component.TEMPORARIES)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    inputs: int,
    outputs: int,
    label: Label | str = "mm",
    *,
    transposed: bool = False,
) -> Tensor:
    """`F.linear(x, weight, bias)`, or `torch.addmm(bias, x, weight)` if the weight is stored
    `transposed` (Conv1D): `[tokens, inputs]` to `[tokens, outputs]`. On autocast's 16-bit list,
    which casts the last argument first.

    The input is saved only if the weight requires a gradient, the weight only if the input does.
    Both gradients are views, as tensors have three dimensions and weights are transposed.
    """
    tape = x.tape
    if bias is not None and not transposed:
        bias = bias.cast_low()
    weight = weight.cast_low()
    x = x.cast_low()
    if bias is not None and transposed:
        bias = bias.cast_low()
    tokens = x.elements // inputs
    x_wanted, weight_wanted = x.requires_grad, weight.requires_grad
    flat = x.flat
    # Generated code computes gradients in the order of the arguments' names: (mat1, mat2, self) of
    # addmm, (mat2, self) of mm.
    first = bias is not None

    def backward(gradient: Tensor) -> Gradients:
        dtype = gradient.dtype
        if first:
            of_x = tape.new(tokens * inputs, dtype, "mm", view=not flat) if x_wanted else None
        of_weight = tape.new(inputs * outputs, dtype, "mm", view=True) if weight_wanted else None
        if not first:
            of_x = tape.new(tokens * inputs, dtype, "mm", view=not flat) if x_wanted else None
        return of_x, of_weight, gradient  # the engine sums that of the bias

    node = tape.node("mm" if bias is None else "addmm", (x, weight, bias), backward)
    tape.save(node, x if weight_wanted else None, weight if x_wanted else None)
    return tape.output(node, tape.new(tokens * outputs, wider(x.dtype, weight.dtype), label))


def bmm(a: Tensor, b: Tensor, elements: int) -> Tensor:
    """`torch.matmul` of batches of matrices, with a result of `elements`. On autocast's 16-bit
    list."""
    b = b.cast_low()
    a = a.cast_low()
    return _product("bmm", a, b, elements)


def grouped_product(
    x: Tensor, weight: Tensor, offsets: Tensor, outputs: int, inputs: int
) -> Tensor:
    """`torch.nn.functional.grouped_mm` of rows sorted by expert: `[rows, inputs]` to `[rows,
    outputs]`, in the weight's dtype, to which `x` is cast. Autocast does not change it."""
    x = x.to(weight.dtype)
    size = x.elements // inputs * outputs
    return _product("_grouped_mm", x, weight, size, view=False, saved=offsets)


def _product(
    name: str,
    a: Tensor,
    b: Tensor,
    elements: int,
    *,
    view: bool = True,
    saved: Tensor | None = None,
) -> Tensor:
    """A product of two tensors, each of which is saved only if the other requires a gradient. The
    gradient of the second is made first; `view`: whether that of the first is a view."""
    tape, a_size, b_size = a.tape, a.elements, b.elements
    a_wanted, b_wanted = a.requires_grad, b.requires_grad

    def backward(gradient: Tensor) -> Gradients:
        dtype = gradient.dtype
        of_b = tape.new(b_size, dtype, name, view=True) if b_wanted else None
        of_a = tape.new(a_size, dtype, name, view=view) if a_wanted else None
        return of_a, of_b

    node = tape.node(name, (a, b), backward)
    tape.save(node, a if b_wanted else None, b if a_wanted else None, saved)
    return tape.output(node, tape.new(elements, wider(a.dtype, b.dtype), name))


def convolution(x: Tensor, weight: Tensor, elements: int) -> Tensor:
    """`F.conv1d` without a bias, with a result of `elements`. On autocast's 16-bit list; what it is
    given lives until it returns."""
    kernel, columns = weight.cast_low(), x.cast_low()
    tape, name, sizes = x.tape, "convolution_backward", (x.elements, weight.elements)
    wanted, dtype = (x.requires_grad, weight.requires_grad), columns.dtype

    def backward(gradient: Tensor) -> Gradients:
        pairs = zip(sizes, wanted, strict=True)
        return tuple(tape.new(size, dtype, name) if asked else None for size, asked in pairs)

    node = tape.node("convolution", (columns, kernel), backward)
    tape.save(node, columns, kernel)
    return tape.output(node, tape.new(elements, dtype, "convolution"))


def solve_triangular(system: Tensor, right: Tensor) -> Tensor:
    """`torch.linalg.solve_triangular(system, right)` with ones on the diagonal: saves the system
    and the result. The gradient of the system is cut to its triangle."""
    tape, dtype, name = system.tape, system.dtype, "linalg_solve_triangular"
    full, elements = system.elements, right.elements
    wanted = system.requires_grad

    def backward(gradient: Tensor) -> Gradients:
        of_right = tape.new(elements, dtype, name)
        if not wanted:
            return None, of_right
        product = tape.new(full, dtype, "bmm")
        _negative = tape.new(full, dtype, "neg")
        del product
        return tape.new(full, dtype, "tril"), of_right

    node = tape.node(name, (system, right), backward)
    result = tape.new(elements, dtype, name)
    tape.save(node, system, result)
    return tape.output(node, result)


def embedding(table: Tensor, indices: Tensor, columns: int, rows: int | None = None) -> Tensor:
    """`F.embedding(indices, table)`: `[indices, columns]`. Its gradient is dense, of the size of
    the table. If the table is one GPU's part of `rows`, the gradient has the size of all rows, and
    the part is a view of it (embedding_dense_backward of a DTensor)."""
    tape, own = table.tape, table.elements
    size = own if rows is None else rows * columns

    def backward(gradient: Tensor) -> Gradients:
        whole = tape.new(size, gradient.dtype, "embedding_dense_backward")
        return (whole if size == own else whole.alias(own),)

    node = tape.node("embedding", (table,), backward)
    tape.save(node, indices)
    return tape.output(node, tape.new(indices.elements * columns, table.dtype, "embedding"))


def cat(*parts: Tensor) -> Tensor:
    """`torch.cat`. The gradients of the parts are views of the whole gradient."""
    tape, sizes = parts[0].tape, tuple(x.elements for x in parts)

    def backward(gradient: Tensor) -> Gradients:
        dtype, buffer = gradient.dtype, gradient.buffer
        return tuple(Tensor(elements, dtype, buffer, view=True) for elements in sizes)

    node = tape.node("cat", parts, backward)
    return tape.output(node, tape.new(sum(sizes), reduce(wider, [x.dtype for x in parts]), "cat"))


def write(base: Tensor, source: Tensor, elements: int, *, adds: bool = False) -> Tensor:
    """`base[..., a:b].copy_(source)`, or `add_`, a part of `elements`, to which `source` is
    broadcast. Returns the base with its new history.

    Its backward function copies the whole gradient, clones the source's part, makes zeros for the
    overwritten part of the base, if the base had a history, and casts that of the source
    (CopySlices and CopyBackwards in torch/csrc/autograd/functions/tensor.cpp).
    """
    tape, full, base_wanted = base.tape, base.elements, base.requires_grad
    given = source.dtype

    def backward(gradient: Tensor) -> Gradients:
        result = tape.new(full, gradient.dtype, "new_empty_strided")
        of_source = tape.new(elements, gradient.dtype, "clone")
        if base_wanted and not adds:
            _overwritten = tape.new(elements, gradient.dtype, "zeros_like")
        if given != gradient.dtype and not adds:
            of_source = tape.new(elements, given, "_to_copy")
        return result if base_wanted else None, of_source

    node = tape.node("copy_", (base, source), backward)
    return tape.output(node, Tensor(full, base.dtype, base.buffer))


def all_reduced(x: Tensor) -> Tensor:
    """The sum of the partial results of all GPUs, in a new tensor (funcol.all_reduce). Each part
    gets the whole gradient."""
    return x.op("all_reduce", made=Label("all_reduce", Component.TEMPORARIES))


def gathered(x: Tensor, elements: int, label: Label | str) -> Tensor:
    """The columns of all GPUs, `elements` together: they arrive one GPU after the other, and are
    then concatenated (funcol.all_gather_tensor). Each GPU copies its columns of the gradient."""
    tape, own, dtype = x.tape, x.elements, x.dtype
    node = tape.node("all_gather_into_tensor", (x,), lambda _: (tape.new(own, dtype, "clone"),))
    _parts = tape.new(elements, dtype, PARTS)
    return tape.output(node, tape.new(elements, dtype, label))


# ---------------------------------------------------------------------- kernels of several tensors

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


# ---------------------------------------------------------------------- that overwrite their inputs
# From Unsloth (which the fused-ops-and-kernels of fms-acceleration use too) and Liger: norms,
# rotary embeddings, a gate and a cross entropy whose gradients need no second tensor of the same
# size.
#
# And low-rank adapters over 4-bit weights as one autograd function for several layers, as in
# Unsloth (unsloth/kernels/fast_lora.py), with the dropout that fms-acceleration added
# (fused_ops/unsloth_lora/bnb/fast_lora.py). Each function saves its input, and with dropout also
# the input of each adapter. Products of the adapters are not saved but recomputed. Gradients of the
# input overwrite the saved input.

LOSSES: Final = Label("losses", Component.LOSS)
LOGSUMEXP: Final = Label("logsumexp", Component.LOSS)
COUNT: Final = Label("count_nonzero", Component.LOSS)

#: The most columns that one program of the cross-entropy kernel reads. Larger vocabularies are read
#: by several, each with its own log-sum-exp (MAX_FUSED_SIZE in unsloth/kernels/utils.py).
_WIDEST: Final = 65536


def rms_norm(x: Tensor, weight: Tensor, size: int, *, liger: bool) -> Tensor:
    """Fast_RMS_Layernorm (unsloth/kernels/rms_layernorm.py): saves its uncast input, and the
    reciprocal root mean square of each row in float32. Its input's gradient overwrites that of its
    output; the weight gets none. In LigerRMSNormFunction (liger_kernel/ops/rms_norm.py, in place as
    in LigerRMSNorm) it does; partial sums of that, a float32 row for each multiprocessor, are not
    counted."""
    tape = x.tape
    name = "LigerRMSNormFunction" if liger else "fast_rms_layernorm"
    trained = weight if liger else None
    dtype = weight.dtype if liger and weight.requires_grad else None

    def backward(gradient: Tensor) -> Gradients:
        return gradient, tape.new(size, dtype, "fast_rms_layernorm") if dtype else None

    node = tape.node(name, (x, trained), backward)
    output = tape.new(x.elements, x.dtype, "fast_rms_layernorm")
    roots = tape.new(x.elements // size, "fp32", "fast_rms_layernorm")
    tape.save(node, x, weight, roots)
    return tape.output(node, output)


def silu_times(gate: Tensor, up: Tensor) -> Tensor:
    """LigerSiLUMulFunction (liger_kernel/ops/swiglu.py): saves both factors, and overwrites them
    with their gradients."""
    tape, elements, dtype = gate.tape, gate.elements, gate.dtype

    def backward(gradient: Tensor) -> Gradients:
        of_gate, of_up = tape.held
        return Tensor(elements, dtype, of_gate), Tensor(elements, dtype, of_up)

    node = tape.node("LigerSiLUMulFunction", (gate, up), backward)
    output = tape.new(elements, dtype, "swiglu")
    tape.save(node, gate, up)
    return tape.output(node, output)


def rope(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Fast_RoPE_Embedding (unsloth/kernels/rope_embedding.py): rotates in place, forward and
    backward. The tables are attributes of its context and live as long as the graph."""
    tape = x.tape
    tables = cosines.buffer, sines.buffer

    def backward(gradient: Tensor, kept: tuple[Buffer, ...] = tables) -> Gradients:
        return (gradient,)

    node = tape.node("fast_rope_embedding", (x,), backward)
    return tape.output(node, Tensor(x.elements, x.dtype, x.buffer))


def cross_entropy_in_place(logits: Tensor, labels: Tensor) -> Tensor:
    """Fast_CrossEntropyLoss (unsloth/kernels/cross_entropy_loss.py), and the mean of its losses:
    saves logits, labels and the log-sum-exp of each row; the gradient overwrites the logits."""
    tape, elements, dtype = logits.tape, logits.elements, logits.dtype
    rows = labels.elements
    chunks = -(-(elements // rows) // _WIDEST)
    node = tape.node(
        "Fast_CrossEntropyLoss", (logits,), lambda _: (Tensor(elements, dtype, tape.held[0]),)
    )
    losses = tape.new(rows, "fp32", LOSSES)
    logarithms = tape.new(rows * chunks, "fp32", LOGSUMEXP)
    if chunks > 1:
        logarithms = tape.new(rows, "fp32", LOGSUMEXP)
    tape.save(node, logits, logarithms, labels)
    losses = tape.output(node, losses)
    tape.operation("count_nonzero")
    labelled = tape.new(rows, "bool", COUNT)
    count = tape.new(1, "int64", COUNT)
    del labelled
    return losses.total(1, LOSSES).op("div", LOSSES, saved=count, made=LOSSES)


@dataclass(frozen=True)
class Adapted:
    """A linear layer over a 4-bit weight, with its adapter.

    Attributes:
        inputs, outputs, rank: its sizes.
        down, up: the matrices of the adapter (lora_A, lora_B).
    """

    inputs: int
    outputs: int
    rank: int
    down: Tensor
    up: Tensor


def several(x: Tensor, layers: Sequence[Adapted], dropout: float) -> list[Tensor]:
    """LoRA_QKV: several layers with the same input."""
    tape = x.tape
    elements, x_type = x.elements, x.dtype
    dropped = dropout > 0.0 and tape.training

    def backward(gradients: list[Tensor | None]) -> Gradients:
        of_x = Tensor(elements, x_type, tape.held[0])
        results: list[Tensor] = []
        for layer in layers:
            results += _of_adapter(tape, elements // layer.inputs, layer, x_type)
        for layer in layers:
            _add_to(tape, elements, layer, x_type, dropped, first=layer is layers[0])
        return (of_x, *results)

    adapters = [matrix for layer in layers for matrix in (layer.down, layer.up)]
    node = tape.node("LoRA_QKV", (x, *adapters), backward, outputs=len(layers))
    x = x.detach()
    made = [_times(x, layer, dropped) for layer in layers]
    tape.save(node, x, *adapters, *(of_adapter for _, of_adapter in made))
    return [tape.output(node, result, index) for index, (result, _) in enumerate(made)]


def single(x: Tensor, layer: Adapted, dropout: float) -> Tensor:
    """LoRA_W: one layer. The gradient of its input is a new tensor."""
    tape = x.tape
    elements, x_type = x.elements, x.dtype
    dropped = dropout > 0.0 and tape.training

    def backward(gradient: Tensor) -> Gradients:
        results = _of_adapter(tape, elements // layer.inputs, layer, x_type)
        weight = _dequantized(tape, layer, x_type)
        of_x = tape.new(elements, x_type, "mm")
        del weight
        _add_low_rank(tape, elements, x_type, dropped)
        return (of_x, *results)

    node = tape.node("LoRA_W", (x, layer.down, layer.up), backward)
    x = x.detach()
    result, of_adapter = _times(x, layer, dropped)
    tape.save(node, layer.down, layer.up, x, of_adapter)
    return tape.output(node, result)


def gated_mlp(x: Tensor, gate: Adapted, up: Adapted, down: Adapted, dropout: float) -> Tensor:
    """LoRA_MLP with SwiGLU: saves the outputs of gate and up, not their product, and overwrites
    both with gradients."""
    tape = x.tape
    elements, x_type, tokens = x.elements, x.dtype, x.elements // gate.inputs
    width = gate.outputs
    dropped = dropout > 0.0 and tape.training

    def backward(gradient: Tensor) -> Gradients:
        of_x = Tensor(elements, x_type, tape.held[0])
        weight = _dequantized(tape, down, x_type)
        of_product = tape.new(tokens * width, x_type, "mm")
        del weight
        _add_low_rank(tape, tokens * width, x_type, dropped)
        of_down = _of_adapter(tape, tokens, down, x_type)
        of_up = _of_adapter(tape, tokens, up, x_type)
        of_gate = _of_adapter(tape, tokens, gate, x_type)
        _add_to(tape, elements, up, x_type, dropped, first=True)
        _add_to(tape, elements, gate, x_type, dropped, first=False)
        del of_product
        return (of_x, *of_gate, *of_up, *of_down)

    adapters = [matrix for layer in (gate, up, down) for matrix in (layer.down, layer.up)]
    node = tape.node("LoRA_MLP", (x, *adapters), backward)
    x = x.detach()
    gated, of_gate = _times(x, gate, dropped)
    raised, of_up = _times(x, up, dropped)
    product = tape.new(tokens * width, x_type, "swiglu_fg_kernel")
    result, of_down = _times(product, down, dropped)
    # Without dropout x also stands for the input of the last adapter.
    last = of_down if dropped else x
    tape.save(node, x, *adapters, gated, raised, of_gate, of_up, last)
    return tape.output(node, result)


def _times(x: Tensor, layer: Adapted, dropped: bool) -> tuple[Tensor, Tensor]:
    """matmul_lora: the layer and its adapter on `x`; and the adapter's input."""
    tape = x.tape
    tokens = x.elements // layer.inputs
    weight = _dequantized(tape, layer, x.dtype)
    result = tape.new(tokens * layer.outputs, x.dtype, "mm")
    del weight
    if dropped:
        x = tape.new(x.elements, x.dtype, "native_dropout")
        tape.new(x.elements, "bool", "native_dropout mask")
    down = _cast(layer.down, x.dtype)
    _narrow = tape.new(tokens * layer.rank, x.dtype, "mm")
    del down
    up = _cast(layer.up, x.dtype)
    _scaled = tape.new(layer.up.elements, x.dtype, "mul")
    del up
    tape.new(tokens * layer.outputs, x.dtype, "mm")
    return result, x


def _of_adapter(tape: Tape, tokens: int, layer: Adapted, dtype: str) -> tuple[Tensor, Tensor]:
    """Gradients of an adapter: `x.T @ (dY @ B.T)` and `(A.T @ x.T) @ dY`."""
    narrow = tape.new(tokens * layer.rank, dtype, "mm")
    of_down = tape.new(layer.inputs * layer.rank, dtype, "mm")
    del narrow
    _narrow = tape.new(tokens * layer.rank, dtype, "mm")
    return of_down, tape.new(layer.outputs * layer.rank, dtype, "mm")


def _add_to(
    tape: Tape, elements: int, layer: Adapted, dtype: str, dropped: bool, *, first: bool
) -> None:
    """`dX += dY @ W.T` and the same for the adapter; the first product is written into dX."""
    weight = _dequantized(tape, layer, dtype)
    if not first:
        tape.new(elements, dtype, "mm")
    del weight
    _add_low_rank(tape, elements, dtype, dropped)


def _add_low_rank(tape: Tape, elements: int, dtype: str, dropped: bool) -> None:
    """`dX += (x != 0) * (dY @ B @ A)`, with the mask only after a dropout."""
    _kept = tape.new(elements, "bool", "ne") if dropped else None
    _product = tape.new(elements, dtype, "mm")
    if dropped:
        tape.new(elements, dtype, "mul")


def _dequantized(tape: Tape, layer: Adapted, dtype: str) -> Tensor:
    """fast_dequantize: the whole weight, and temporarily its block absmaxes in float32."""
    size = layer.inputs * layer.outputs
    weight = tape.new(size, dtype, "fast_dequantize")
    tape.new(-(-size // BLOCK), "fp32", "fast_dequantize")
    return weight


def _cast(x: Tensor, dtype: str) -> Tensor:
    return x if x.dtype == dtype else x.tape.new(x.elements, dtype, "_to_copy")
