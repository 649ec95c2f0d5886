"""The operations of a step and their arithmetic intensity, from shape and plan alone.

Counted are the forward pass (again for layers that are recomputed), the backward passes of
products, attention and loss, and the optimizer step. The backward passes of row-by-row operations
(norms, activations, rotary embeddings) are not counted: they move about twice the bytes of the
forward passes. Symbols as in formulas: N tokens of a micro batch, B sequences of S tokens, h hidden
size, H heads of size D, V vocabulary, e bytes of an element in computation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil
from typing import Final

from qtui_core.memory.compute import intensity_rows as rows
from qtui_core.memory.compute.operation import Operation
from qtui_core.memory.compute.totals import in_decoder, of_encoded, pairs_of
from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.plan.targets import adapters_of
from qtui_core.memory.shape.model_shape import (
    Attention,
    LatentAttention,
    Layer,
    Linear,
    ModelShape,
    Module,
    Moe,
    Parameter,
)
from qtui_core.memory.shape.modules import modules_of_layer
from qtui_core.memory.shape.packings import UNPACKED_BY_FORWARD, Layout
from qtui_core.memory.shape.weights import WeightStorage

#: Rows and columns of the result that one thread block computes, in CUTLASS and cuBLAS for large
#: products ("Efficient GEMM in CUDA", CUTLASS documentation).
_TILE: Final = 128
_ROOFLINE: Final = "2mnk operations, each matrix moved once (Williams et al. 2009)"
_FLASH: Final = "FlashAttention-2 (arXiv 2307.08691, section 3.1): scores stay on the chip"
_EAGER: Final = "eager_attention_forward of transformers, operation by operation"


#: Endings of the names of the output projections of attention and feed-forward part.
_OUT: Final = ("o_proj", "out_proj", "c_proj", "down_proj", "fc2", "dense_4h_to_h", "wo", "w2")


def operations_of(shape: ModelShape, plan: RunPlan) -> tuple[Operation, ...]:
    """The operations of a step of a resolved plan, in the order of their first occurrence. Those
    with the same numbers are one row with all their names."""
    times: dict[Operation, int] = {}
    names: dict[Operation, list[str]] = {}
    for operation in _all(shape, plan):
        key = replace(operation, times=0, name="")
        times[key] = times.get(key, 0) + operation.times
        if operation.name not in names.setdefault(key, []):
            names[key].append(operation.name)
    return tuple(replace(key, times=times[key], name=_name(key, names[key])) for key in times)


def _name(operation: Operation, names: Sequence[str]) -> str:
    joined = ", ".join(names)
    return f"dequantize {joined}" if operation.group == "weights" else joined


def _all(shape: ModelShape, plan: RunPlan) -> Iterator[Operation]:
    decoding = in_decoder(shape, plan)
    for prefix, layers, working in (
        (shape.encoder_prefix, shape.encoder, plan),
        (shape.layer_prefix, shape.layers, decoding),
    ):
        for index, layer in enumerate(layers):
            yield from _layer(shape, working, f"{prefix}.{index}", layer, plan.sequence)
    again = replace(decoding, checkpointing=False)  # only layers are recomputed
    outside: list[Module] = [*shape.embedding_modules, *shape.head_modules]
    if shape.head is not None:
        outside.append(shape.head)
    adapted: list[rows.AdapterProducts] = []
    for module in outside:
        yield from _module(shape, again, module.name, module, None, again.tokens)
        adapted += _adapted(shape, again, module.name, module, None)
    yield from rows.adapters(adapted, again)
    if shape.final_norm is not None:
        yield rows.norm(shape.final_norm, again)
    if shape.head is not None and plan.trains:
        yield rows.loss(shape, plan)
    yield from rows.optimizer_step(shape, plan)
    if plan.generate:
        yield from _decode(shape, plan)


def element(plan: RunPlan) -> str:
    """The dtype in which products are computed."""
    return plan.autocast_dtype if plan.autocast else plan.dtype or "bf16"


def _layer(
    shape: ModelShape, plan: RunPlan, prefix: str, layer: Layer, encoded: int
) -> Iterator[Operation]:
    for norm in layer.norms:
        yield rows.norm(norm, plan)
    adapted: list[rows.AdapterProducts] = []
    for module in sorted(modules_of_layer(layer), key=_comes_last):
        name = f"{prefix}.{module.name}"
        tokens = plan.batch * encoded if of_encoded(layer, module) else plan.tokens
        yield from _module(shape, plan, name, module, layer, tokens)
        adapted += _adapted(shape, plan, name, module, layer)
    yield from rows.adapters(adapted, plan)
    yield from rows.rotation(layer, plan)
    yield from _attention(layer, plan, encoded)
    yield from rows.activation(layer, plan)
    yield rows.residual(shape, plan)


def _module(
    shape: ModelShape,
    plan: RunPlan,
    name: str,
    module: Module,
    layer: Layer | None,
    tokens: int,
) -> Iterator[Operation]:
    """The products of a module and, if its weight is packed, its dequantization."""
    if isinstance(module, Linear):
        label = _label(module, layer)
        quantized = WeightStorage(shape, plan).is_quantized(name, module)
        yield _product(label, tokens, module.inputs, module.outputs, plan, quantized)
        if quantized and plan.quant != "int8" and _unpacks(module.layout):
            yield rows.dequantization(label, module, plan)
    elif isinstance(module, Parameter) and layer is not None and isinstance(layer.mlp, Moe):
        moe = layer.mlp
        if module in moe.stacked and len(module.shape) == 3:
            experts, outputs, inputs = module.shape
            label = f"{module.name.rpartition('.')[2]}, experts"
            yield _product(label, tokens * moe.top_k, inputs, outputs, plan, False, experts)
        elif module == moe.router:
            outputs, inputs = module.shape
            yield _product("router", tokens, inputs, outputs, plan, False)


def _unpacks(layout: Layout | None) -> bool:
    """Whether a packed weight is unpacked for each product. FP8 is multiplied as it is;
    compressed-tensors unpacks once."""
    kind = "" if layout is None else layout.kind
    return kind not in ("fp8", "fbgemm") and kind not in UNPACKED_BY_FORWARD


def _adapted(
    shape: ModelShape, plan: RunPlan, name: str, module: Module, layer: Layer | None
) -> Iterator[rows.AdapterProducts]:
    """The adapter on a module, if it has one: on a linear layer, or on stacked experts."""
    rank = adapters_of(shape, plan).rank_on(name, module)
    if rank and isinstance(module, Linear):
        yield rows.AdapterProducts(module.inputs, module.outputs, rank, plan.tokens)
    elif rank and layer is not None and isinstance(layer.mlp, Moe) and module in layer.mlp.stacked:
        assert isinstance(module, Parameter)
        if len(module.shape) == 3:
            experts, outputs, inputs = module.shape
            worked = plan.tokens * layer.mlp.top_k
            yield rows.AdapterProducts(inputs, outputs, rank, worked, experts)


def _comes_last(module: Module) -> int:
    """A sort key: output projections follow the other modules, whatever the order of the fields."""
    return 1 if module.name.endswith(_OUT) else 0


def _label(module: Linear, layer: Layer | None) -> str:
    """The last part of its name, or the full name if another module of the layer has the same last
    part (GPT-2's c_proj)."""
    last = module.name.rpartition(".")[2]
    others = () if layer is None else modules_of_layer(layer)
    alike = sum(
        isinstance(each, Linear) and each.name.rpartition(".")[2] == last for each in others
    )
    return module.name if alike > 1 else last


def _product(
    name: str, m: int, k: int, n: int, plan: RunPlan, quantized: bool, copies: int = 1
) -> Operation:
    """The product of m tokens with k inputs and n outputs. The gradients of input and weight are
    products with the same three sizes. `copies` are weights that share the tokens: experts."""
    dtype = element(plan)
    e = SIZES[dtype]
    moved = e * (m * k + copies * k * n + m * n)
    if quantized and plan.quant == "int8":
        # LLM.int8: operands of one byte, sums of four (bitsandbytes igemmlt).
        dtype, moved = "int8", m * k + k * n + 4 * m * n
        e = 1
    tiles = copies * ceil(m / copies / _TILE)
    strips = e * (m * k * ceil(n / _TILE) + k * n * tiles + m * n)
    return Operation(
        name,
        "products",
        _passes(plan, trained=plan.method == "full") * plan.accumulation,
        2 * m * n * k,
        moved,
        max(moved, strips),
        dtype,
        f"2·{m:,}·{n:,}·{k:,} over {SIZES.get(dtype, 1)} B × (mk + kn + mn)",
        _ROOFLINE,
    )


def _passes(plan: RunPlan, *, trained: bool) -> int:
    """How often the product is computed: forward, again if recomputed, and for the gradients of
    input and weight."""
    return plan.forward_passes + plan.trains + (plan.trains and trained)


def _attention(layer: Layer, plan: RunPlan, encoded: int) -> Iterator[Operation]:
    """Scores and values together, forward and backward."""
    attention = layer.attention
    dtype = element(plan)
    e, tokens = SIZES[dtype], plan.tokens
    if isinstance(attention, LatentAttention):
        heads = kv_heads = attention.heads
        width, value = attention.nope_dim + attention.rope_dim, attention.value_dim
    else:
        heads, kv_heads = attention.heads, attention.kv_heads
        width = value = attention.head_dim
    pairs = pairs_of(layer, plan, encoded)
    queries, keys = e * tokens * heads * width, e * tokens * kv_heads * width
    values, out = e * tokens * kv_heads * value, e * tokens * heads * value
    once = queries + keys + values + out
    sums = 4 * tokens * heads  # the log-sum-exp of each row
    blocks = ceil(plan.sequence / _TILE)
    streamed = queries + out + (keys + values) * max(1, blocks // 2)
    if plan.attention == "eager":
        scores = plan.batch * heads * plan.sequence**2
        # Product, scaling, mask, softmax, product. 16 bits become 32 for the softmax and 16 again;
        # for fp16 this happens inside the kernel (softmax in ATen/native/SoftMax.cpp).
        casts = {"fp32": 0, "fp16": 2 * e}.get(dtype, 2 * (e + 4))
        moved = scores * (e + 2 * e + 2 * e + 8 + casts + e)
        forward = Operation(
            "attention, eager", "attention", plan.forward_passes * plan.accumulation,
            2 * pairs, once + moved, once + moved, dtype,
            f"4·B·H·S²·D over q, k, v, out and {moved // scores} B × B·H·S² of scores", _EAGER,
            once, "flash attention keeps the scores on the chip",
        )  # fmt: skip
        # Gradients of values and of the softmax's result, softmax, scaling, two products.
        back = scores * (e + e + 12 + casts + 2 * e + 2 * e)
        backward = Operation(
            "attention backward", "attention", plan.accumulation, 4 * pairs,
            2 * once + back, 2 * once + back, dtype,
            f"8·B·H·S²·D over q, k, v, out, their gradients and {back // scores} B × B·H·S² of "
            "scores", _EAGER, 2 * once, "flash attention computes the scores again",
        )  # fmt: skip
    else:
        forward = Operation(
            "attention", "attention", plan.forward_passes * plan.accumulation, 2 * pairs,
            once + sums, max(once, streamed) + sums, dtype,
            "4·pairs·H·D over q, k, v, out and 4 B of a row", _FLASH,
        )  # fmt: skip
        backward = Operation(
            "attention backward", "attention", plan.accumulation, 5 * pairs,
            2 * once + 2 * sums, 2 * (max(once, streamed) + sums), dtype,
            "10·pairs·H·D over q, k, v, out and their gradients", _FLASH,
        )  # fmt: skip
    yield forward
    if plan.trains:
        yield backward


def _decode(shape: ModelShape, plan: RunPlan) -> Iterator[Operation]:
    """One token after the prompt: every weight is read for one token of each sequence."""
    e = SIZES[element(plan)]
    parameters = moved = 0
    for prefix, layers in ((shape.layer_prefix, shape.layers),):
        for index, layer in enumerate(layers):
            for module in modules_of_layer(layer):
                if isinstance(module, Linear) and not of_encoded(layer, module):
                    count = module.inputs * module.outputs
                    name = f"{prefix}.{index}.{module.name}"
                    packed = WeightStorage(shape, plan).is_quantized(name, module)
                    parameters += count
                    each = rows.packed_bytes(plan, module) if packed else e
                    moved += round(count * each)
    if parameters:
        yield Operation(
            "products of a token", "decode", plan.generate, 2 * plan.batch * parameters, moved,
            moved, element(plan), "2·B·P over the bytes of P weights, read for B tokens",
            "all linear layers; experts as modules of stacks are left out",
        )  # fmt: skip
    work = cached = 0
    length = in_decoder(shape, plan).sequence + plan.generate // 2
    for layer in shape.layers:
        attention = layer.attention
        if isinstance(attention, LatentAttention):
            continue
        seen = min(length, attention.window or length)
        work += 4 * plan.batch * seen * attention.heads * attention.head_dim
        cached += 2 * e * plan.batch * seen * attention.kv_heads * attention.head_dim
        if isinstance(layer.cross, Attention):
            width = plan.batch * plan.sequence * layer.cross.heads * layer.cross.head_dim
            work, cached = work + 4 * width, cached + 2 * e * width
    if cached:
        yield Operation(
            "attention of a token", "decode", plan.generate, work, cached, cached, element(plan),
            "4·B·S·H·D over the cached keys and values", "each is read once for each token",
        )  # fmt: skip
