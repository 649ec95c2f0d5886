"""The operations of a step and their arithmetic intensity, from shape and plan alone.

Counted are the forward pass (again for layers that are recomputed), the backward passes of
products, attention and loss, and the optimizer step. The backward passes of row-by-row operations
(norms, activations, rotary embeddings) are not counted: they move about twice the bytes of the
forward passes. Those are limited by memory bandwidth, so what counts is how often each element is
read and written; in one kernel it would be once. Symbols as in formulas: N tokens of a micro batch,
B sequences of S tokens, h hidden size, H heads of size D, V vocabulary, e bytes of an element in
computation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from math import ceil
from typing import Final

from qtui_core.memory.cached import quantized_as
from qtui_core.memory.compute import WeightProduct, pairs_of, products_of
from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.plan.optimizers import OPTIMIZERS
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.shape.model_shape import (
    Attention,
    LatentAttention,
    Layer,
    Linear,
    ModelShape,
    Moe,
    Norm,
)
from qtui_core.memory.shape.packings import STORED, UNPACKED_BY_FORWARD, Layout
from qtui_core.memory.shape.weights import BLOCK, NESTED_BLOCK, WeightStorage, tensors_of
from qtui_core.memory.step.optimizer import states_of
from qtui_core.roofline.operation import Operation

#: Rows and columns of the result that one thread block computes, in CUTLASS and cuBLAS for large
#: products ("Efficient GEMM in CUDA", CUTLASS documentation).
_TILE: Final = 128
_ROOFLINE: Final = "2mnk operations, each matrix moved once (Williams et al. 2009)"
_FLASH: Final = "FlashAttention-2 (arXiv 2307.08691, section 3.1): scores stay on the chip"
_EAGER: Final = "eager_attention_forward of transformers, operation by operation"
_IN_ONE: Final = "one kernel reads and writes each element once"
_LIGER: Final = "Liger, Unsloth or torch.compile do it in one kernel"

#: Endings of the names of the output projections of attention and feed-forward part.
_OUT: Final = ("o_proj", "out_proj", "c_proj", "down_proj", "fc2", "dense_4h_to_h", "w2")


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
    storage = WeightStorage(shape, plan)
    products = [*products_of(shape, plan)]
    inside = [product for product in products if product.index is not None]
    for index, of_layer in groupby(inside, key=lambda product: product.index):
        layer, own = shape.layers[index or 0], [*of_layer]
        for norm in layer.norms:
            yield _norm(norm, plan)
        for label, product in _labels(sorted(own, key=_comes_last)):
            yield from _product(label, product, plan, storage)
        yield from _adapters(own, plan)
        yield from _rotation(layer, plan)
        yield from _attention(layer, plan)
        yield from _activation(layer, plan)
        yield _residual(shape, plan)
    again = replace(plan, checkpointing=False)  # only layers are recomputed
    outside = products[len(inside) :]
    for product in outside:
        yield from _product(product.module.name.rpartition(".")[2], product, again, storage)
    yield from _adapters(outside, again)
    if shape.final_norm is not None:
        yield _norm(shape.final_norm, again)
    if shape.head is not None and plan.trains:
        yield _loss(shape, plan)
    yield from _optimizer_step(shape, plan)
    if plan.generate:
        yield from _decode(shape, plan, inside, storage)


def _dtype(plan: RunPlan) -> str:
    """The dtype in which products are computed."""
    return plan.autocast_dtype if plan.autocast else plan.dtype or "bf16"


def _element(plan: RunPlan) -> int:
    return SIZES[_dtype(plan)]


def _stream(plan: RunPlan) -> int:
    """Bytes of an element of the residual stream: 4 after k-bit preparation."""
    return 4 if plan.kbit_prep != "none" or plan.dtype == "fp32" else 2


def _runs(plan: RunPlan) -> int:
    """Forward passes of a layer in a step."""
    return plan.forward_passes * plan.accumulation


def _unpacks(layout: Layout | None) -> bool:
    """Whether a packed weight is unpacked for each product. FP8 is multiplied as it is;
    compressed-tensors unpacks once."""
    kind = "" if layout is None else layout.kind
    return kind not in ("fp8", "fbgemm") and kind not in UNPACKED_BY_FORWARD


def _comes_last(product: WeightProduct) -> bool:
    """A sort key: output projections follow the other modules, whatever the order of the fields."""
    return product.module.name.endswith(_OUT)


def _labels(products: Sequence[WeightProduct]) -> Iterator[tuple[str, WeightProduct]]:
    """Each with the last part of its name, or with the full name if another linear layer beside it
    has the same last part (GPT-2's c_proj)."""
    linear = [p.module.name.rpartition(".")[2] for p in products if isinstance(p.module, Linear)]
    for product in products:
        name = product.module.name.rpartition(".")[2]
        if isinstance(product.module, Linear):
            yield name if linear.count(name) == 1 else product.module.name, product
        else:
            yield "router" if product.copies == 1 else f"{name}, experts", product


def _product(
    label: str, product: WeightProduct, plan: RunPlan, storage: WeightStorage
) -> Iterator[Operation]:
    """The product of a weight and, if it is packed, its dequantization. The gradients of input and
    weight are products with the same three sizes."""
    module, copies = product.module, product.copies
    m, k, n = plan.tokens * product.used, product.inputs, product.outputs
    quantized = isinstance(module, Linear) and storage.is_quantized(product.name, module)
    dtype, e = _dtype(plan), _element(plan)
    moved = e * (m * k + copies * k * n + m * n)
    if quantized and plan.quant == "int8":
        # LLM.int8: operands of one byte, sums of four (bitsandbytes igemmlt).
        dtype, e, moved = "int8", 1, m * k + k * n + 4 * m * n
    tiles = copies * ceil(m / copies / _TILE)
    strips = e * (m * k * ceil(n / _TILE) + k * n * tiles + m * n)
    # Forward, again if recomputed, and for the gradients of input and weight.
    passes = plan.forward_passes + plan.trains + (plan.trains and plan.method == "full")
    yield Operation(
        label, "products", passes * plan.accumulation, 2 * m * n * k, moved, max(moved, strips),
        dtype, f"2·{m:,}·{n:,}·{k:,} over {SIZES.get(dtype, 1)} B × (mk + kn + mn)", _ROOFLINE,
    )  # fmt: skip
    if quantized and plan.quant != "int8" and _unpacks(module.layout):
        assert isinstance(module, Linear)
        yield _dequantization(label, module, plan)


def _attention(layer: Layer, plan: RunPlan) -> Iterator[Operation]:
    """Scores and values together, forward and backward."""
    attention = layer.attention
    dtype = _dtype(plan)
    e, tokens = SIZES[dtype], plan.tokens
    if isinstance(attention, LatentAttention):
        heads = kv_heads = attention.heads
        width, value = attention.nope_dim + attention.rope_dim, attention.value_dim
    else:
        heads, kv_heads = attention.heads, attention.kv_heads
        width = value = attention.head_dim
    pairs = pairs_of(layer, plan)
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


def _decode(
    shape: ModelShape, plan: RunPlan, products: Sequence[WeightProduct], storage: WeightStorage
) -> Iterator[Operation]:
    """One token after the prompt: every weight is read for one token of each sequence."""
    e = _element(plan)
    parameters = moved = 0
    for product in products:
        if isinstance(product.module, Linear):
            packed = storage.is_quantized(product.name, product.module)
            bytes_each = _packed_bytes(plan, product.module) if packed else e
            parameters += product.parameters
            moved += round(product.parameters * bytes_each)
    if parameters:
        yield Operation(
            "products of a token", "decode", plan.generate, 2 * plan.batch * parameters, moved,
            moved, _dtype(plan), "2·B·P over the bytes of P weights, read for B tokens",
            "all linear layers; experts as modules of stacks are left out",
        )  # fmt: skip
    work = cached = 0
    stored = quantized_as(plan)
    kept = e if stored is None else stored.bits_each(_dtype(plan)) / 8
    length = plan.sequence + plan.generate // 2
    for layer in shape.layers:
        attention = layer.attention
        if isinstance(attention, LatentAttention):
            continue
        seen = min(length, attention.window or length)
        work += 4 * plan.batch * seen * attention.heads * attention.head_dim
        cached += round(2 * kept * plan.batch * seen * attention.kv_heads * attention.head_dim)
    if cached:
        yield Operation(
            "attention of a token", "decode", plan.generate, work, cached, cached, _dtype(plan),
            "4·B·S·H·D over the cached keys and values", "each is read once for each token",
        )  # fmt: skip


def _row(
    name: str, times: int, operations: int, nbytes: int, formula: str, source: str,
    fused_bytes: int | None = None, fused: str = "", group: str = "row by row",
) -> Operation:  # fmt: skip
    return Operation(
        name, group, times, operations, nbytes, nbytes, "fp32", formula, source, fused_bytes, fused
    )


def _norm(module: Norm, plan: RunPlan) -> Operation:
    """A norm over `[N, size]`. LlamaRMSNorm casts to 32 bits, squares, averages, multiplies, casts
    back and multiplies by the weight, each in a pass of its own."""
    n, s = plan.tokens * module.size, _stream(plan)
    if not module.kind.startswith("rms") or plan.kernels != "torch":
        return _row("norm", _runs(plan), 8 * n, 2 * s * n, "8·N·h over 2s·N·h", _IN_ONE)
    casts = 0 if s == 4 else 2 * (4 + s)
    moved = n * (20 + 2 * s + casts)
    return _row(
        "RMSNorm", _runs(plan), 4 * n, moved, f"4·N·h over {moved // n} B × N·h",
        "LlamaRMSNorm.forward of transformers, pass by pass", 2 * s * n, _LIGER,
    )  # fmt: skip


def _rotation(layer: Layer, plan: RunPlan) -> Iterator[Operation]:
    """The rotary embedding of queries and keys: rotated halves (3e), two products (4e), a sum
    (3e)."""
    attention = layer.attention
    if not isinstance(attention, Attention) or attention.positions != "rope":
        return
    e = _element(plan)
    n = plan.tokens * (attention.heads + attention.kv_heads) * attention.head_dim
    if plan.kernels != "torch":
        yield _row("rotation", _runs(plan), 3 * n, 2 * e * n, "3·n over 2e·n", _IN_ONE)
        return
    yield _row(
        "rotation", _runs(plan), 3 * n, 10 * e * n, "3·n over 10e·n, n = N·(H + Hk)·D",
        "apply_rotary_pos_emb of transformers, pass by pass", 2 * e * n, _LIGER,
    )  # fmt: skip


def _activation(layer: Layer, plan: RunPlan) -> Iterator[Operation]:
    """The activation function (2e), and with a gate the product with the other half (3e)."""
    mlp = layer.mlp
    e = _element(plan)
    if isinstance(mlp, Moe):
        # Experts always have a gate.
        n = plan.tokens * mlp.top_k * mlp.intermediate
        yield _gated("gated activation, experts", n, plan)
        if mlp.shared is not None:
            yield _gated("gated activation", plan.tokens * mlp.shared.down.inputs, plan)
        return
    n = plan.tokens * mlp.down.inputs
    if mlp.gate is None and mlp.fused is None and mlp.activation == "gelu_new":
        yield _row(
            "gelu_new", _runs(plan), 10 * n, 18 * e * n, "10·N·I over 18e·N·I",
            "NewGELUActivation of transformers, pass by pass", 2 * e * n,
            "gelu_pytorch_tanh is the same in one kernel",
        )  # fmt: skip
    elif mlp.gate is None and mlp.fused is None:
        yield _row(
            mlp.activation, _runs(plan), 5 * n, 2 * e * n, "5·N·I over 2e·N·I",
            "one kernel of torch; an exponential counts as one operation",
        )  # fmt: skip
    else:
        yield _gated("gated activation", n, plan)


def _gated(name: str, n: int, plan: RunPlan) -> Operation:
    """The activation of one half times the other, over n elements."""
    e = _element(plan)
    if plan.kernels == "liger":
        return _row(name, _runs(plan), 5 * n, 3 * e * n, "5·N·I over 3e·N·I", _IN_ONE)
    return _row(
        name, _runs(plan), 5 * n, 5 * e * n, "5·N·I over 5e·N·I",
        "activation, then product; an exponential counts as one operation", 3 * e * n, _LIGER,
    )  # fmt: skip


def _residual(shape: ModelShape, plan: RunPlan) -> Operation:
    """The two residual sums of a layer, each of which a norm could include."""
    n, s = plan.tokens * shape.hidden, _stream(plan)
    return _row(
        "residual sum", 2 * _runs(plan), n, 3 * s * n, "N·h over 3s·N·h", "two read, one written",
        2 * s * n, "the norm after it takes the sum along",
    )  # fmt: skip


def _adapters(products: Sequence[WeightProduct], plan: RunPlan) -> Iterator[Operation]:
    """All adapters of a layer: both products, then scaling and adding the result."""
    adapted = [(p, plan.tokens * p.used) for p in products if p.rank]
    if not adapted:
        return
    dtype = plan.autocast_dtype if plan.autocast else plan.adapter_dtype or "fp32"
    out = _element(plan)
    work = sum(2 * rows * p.rank * (p.inputs + p.outputs) for p, rows in adapted)
    moved = SIZES[dtype] * sum(
        (rows + p.copies * p.rank) * (p.inputs + p.outputs) + 2 * rows * p.rank
        for p, rows in adapted
    )
    written = sum(rows * p.outputs for p, rows in adapted)
    # Forward, recomputed, and in the backward pass for input and weight.
    times = _runs(plan) + 2 * plan.accumulation
    yield Operation(
        "adapters A, B", "products", times, work, moved, moved, dtype,
        "2·N·r·(in + out) over N·in + 2·N·r + N·out", "peft lora.Linear.forward, all of a layer",
    )  # fmt: skip
    yield _row(
        "adapter sum", _runs(plan), 2 * written, 5 * out * written, "2·N·out over 5e·N·out",
        "scaling, then adding to the base's result", 2 * out * written,
        "the product of B adds to the result itself",
    )  # fmt: skip


def _packed_bytes(plan: RunPlan, module: Linear) -> float:
    """Bytes of a packed weight with its constants."""
    if plan.quant == STORED and module.layout is not None:
        if module.layout.kind in UNPACKED_BY_FORWARD:
            return SIZES[plan.dtype or "bf16"]
        parts = module.layout.parts((module.outputs, module.inputs), plan.dtype or "bf16")
        stored = sum(part.elements * SIZES[part.dtype] for part in parts)
        return stored / (module.inputs * module.outputs)
    if plan.quant == "int8":
        return 1.0
    if (plan.quant or "").endswith("-dq"):
        return 0.5 + 1 / BLOCK + 4 / (BLOCK * NESTED_BLOCK)
    return 0.5 + 4 / BLOCK


def _dequantization(name: str, module: Linear, plan: RunPlan) -> Operation:
    """A packed weight is read and written out in 16 bits before each product."""
    count, packed, e = module.inputs * module.outputs, _packed_bytes(plan, module), _element(plan)
    times = _runs(plan) + plan.trains * plan.accumulation
    source = "the kernel of its layout" if plan.quant == STORED else "bitsandbytes dequantize_4bit"
    return _row(
        name, times, 2 * count, round(count * (packed + e)),
        f"2·in·out over ({packed:.3f} + {e}) B × in·out", source,
        round(count * packed), "the product unpacks what it reads", "weights",
    )  # fmt: skip


def _loss(shape: ModelShape, plan: RunPlan) -> Operation:
    """Cross entropy over `[N, V]`, forward and backward: cast to 32 bits, log-softmax, its
    gradient, the gradient of the selection, cast back."""
    n, e = plan.tokens * shape.vocabulary, _element(plan)
    if plan.loss == "fused" or plan.loss.startswith("in-place"):
        return _row(
            "loss", plan.accumulation, 8 * n, 2 * e * n, "8·N·V over 2e·N·V",
            "logits are read once and become their gradient",
        )  # fmt: skip
    cast = 0 if e == 4 else 2 * (e + 4)
    moved = n * (24 + cast)
    return _row(
        "loss", plan.accumulation, 8 * n, moved, f"8·N·V over {24 + cast} B × N·V",
        "ForCausalLMLoss of transformers, pass by pass", 2 * e * n,
        "logits are read once and become their gradient (--loss in-place or fused)",
    )  # fmt: skip


def _optimizer_step(shape: ModelShape, plan: RunPlan) -> Iterator[Operation]:
    """The optimizer step over all trained parameters."""
    if not plan.trains:
        return
    trained = [tensor for tensor in tensors_of(shape, plan) if tensor.requires_grad]
    if not (count := sum(tensor.elements for tensor in trained)):
        return
    nbytes = sum(tensor.bytes for tensor in trained)
    states = sum(state.bytes for tensor in trained for state in states_of(tensor, plan))
    # Parameter read and written, gradient read, states read and written.
    least = 3 * nbytes + 2 * states
    kind = OPTIMIZERS[plan.optimizer]
    name, work = f"{kind.update} step", kind.work * count
    if kind.passes:
        yield _row(
            name, 1, work, kind.passes * nbytes, f"{kind.work}·P over {kind.passes} × bytes of P",
            "torch/optim/adam.py, _multi_tensor_adam, list by list", least,
            "--optimizer adamw-fused", "optimizer",
        )  # fmt: skip
    else:
        yield _row(
            name, 1, work, least, f"{kind.work}·P over parameters, gradients and states",
            "one kernel: each read once, and written once if it changes", group="optimizer",
        )  # fmt: skip
