"""Operations with little arithmetic per element: norms, activations, rotary embeddings, sums, the
loss, dequantization, the optimizer. All are limited by memory bandwidth, so what counts is how
often each element is read and written; in one kernel it would be once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.compute.operation import Operation
from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.shape.model_shape import Attention, Layer, Linear, ModelShape, Moe, Norm
from qtui_core.memory.shape.packings import STORED, UNPACKED_BY_FORWARD
from qtui_core.memory.shape.storage import BLOCK, NESTED_BLOCK
from qtui_core.memory.shape.weights import tensors_of
from qtui_core.memory.step.optimizer import states_of

_IN_ONE: Final = "one kernel reads and writes each element once"
_LIGER: Final = "Liger, Unsloth or torch.compile do it in one kernel"


def _element(plan: RunPlan) -> int:
    return SIZES[plan.autocast_dtype if plan.autocast else plan.dtype or "bf16"]


def _stream(plan: RunPlan) -> int:
    """Bytes of an element of the residual stream: 4 after k-bit preparation."""
    return 4 if plan.kbit_prep != "none" or plan.dtype == "fp32" else 2


def _runs(plan: RunPlan) -> int:
    """Forward passes of a layer in a step."""
    return plan.forward_passes * plan.accumulation


def _row(
    name: str, times: int, operations: int, nbytes: int, formula: str, source: str,
    fused_bytes: int | None = None, fused: str = "", group: str = "row by row",
) -> Operation:  # fmt: skip
    return Operation(
        name, group, times, operations, nbytes, nbytes, "fp32", formula, source, fused_bytes, fused
    )


def norm(module: Norm, plan: RunPlan) -> Operation:
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


def rotation(layer: Layer, plan: RunPlan) -> Iterator[Operation]:
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


def activation(layer: Layer, plan: RunPlan) -> Iterator[Operation]:
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


def residual(shape: ModelShape, plan: RunPlan) -> Operation:
    """The two residual sums of a layer, each of which a norm could include."""
    n, s = plan.tokens * shape.hidden, _stream(plan)
    return _row(
        "residual sum", 2 * _runs(plan), n, 3 * s * n, "N·h over 3s·N·h", "two read, one written",
        2 * s * n, "the norm after it takes the sum along",
    )  # fmt: skip


@dataclass(frozen=True)
class AdapterProducts:
    """An adapter: `rows` are multiplied by `[inputs, rank]` and `[rank, outputs]`. It has `copies`
    such pairs, one for each expert."""

    inputs: int
    outputs: int
    rank: int
    rows: int
    copies: int = 1


def adapters(adapted: Sequence[AdapterProducts], plan: RunPlan) -> Iterator[Operation]:
    """All adapters of a layer: both products, then scaling and adding the result."""
    if not adapted:
        return
    dtype = plan.autocast_dtype if plan.autocast else plan.adapter_dtype or "fp32"
    e, out = SIZES[dtype], _element(plan)
    work = sum(2 * a.rows * a.rank * (a.inputs + a.outputs) for a in adapted)
    moved = sum(
        e * ((a.rows + a.copies * a.rank) * (a.inputs + a.outputs) + 2 * a.rows * a.rank)
        for a in adapted
    )
    written = sum(a.rows * a.outputs for a in adapted)
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


def packed_bytes(plan: RunPlan, module: Linear) -> float:
    """Bytes of a packed weight with its constants."""
    if plan.quant == STORED and module.layout is not None:
        if module.layout.kind in UNPACKED_BY_FORWARD:
            return SIZES[plan.dtype or "bf16"]
        parts = module.layout.parts((module.outputs, module.inputs), plan.dtype or "bf16")
        stored = sum(prod(part.sizes) * SIZES[part.dtype] for part in parts)
        return stored / (module.inputs * module.outputs)
    if plan.quant == "int8":
        return 1.0
    if (plan.quant or "").endswith("-dq"):
        return 0.5 + 1 / BLOCK + 4 / (BLOCK * NESTED_BLOCK)
    return 0.5 + 4 / BLOCK


def dequantization(name: str, module: Linear, plan: RunPlan) -> Operation:
    """A packed weight is read and written out in 16 bits before each product."""
    count, packed, e = module.inputs * module.outputs, packed_bytes(plan, module), _element(plan)
    times = _runs(plan) + plan.trains * plan.accumulation
    source = "the kernel of its layout" if plan.quant == STORED else "bitsandbytes dequantize_4bit"
    return _row(
        name, times, 2 * count, round(count * (packed + e)),
        f"2·in·out over ({packed:.3f} + {e}) B × in·out", source,
        round(count * packed), "the product unpacks what it reads", "weights",
    )  # fmt: skip


def loss(shape: ModelShape, plan: RunPlan) -> Operation:
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


def optimizer_step(shape: ModelShape, plan: RunPlan) -> Iterator[Operation]:
    """The optimizer step over all trained parameters."""
    if not plan.trains:
        return
    trained = [tensor for tensor in tensors_of(shape, plan) if tensor.requires_grad]
    count = sum(tensor.elements for tensor in trained)
    if not count:
        return
    nbytes = sum(tensor.bytes for tensor in trained)
    states = sum(state.bytes for tensor in trained for state in states_of(tensor, plan))
    # Parameter read and written, gradient read, states read and written.
    least = 3 * nbytes + 2 * states
    if plan.optimizer == "adamw":
        yield _row(
            "AdamW step", 1, 14 * count, 20 * nbytes, "14·P over 20 × bytes of P",
            "torch/optim/adam.py, _multi_tensor_adam, list by list", least,
            "--optimizer adamw-fused", "optimizer",
        )  # fmt: skip
    else:
        name = {"sgd": "SGD step", "adamw-fused": "AdamW step"}.get(plan.optimizer, plan.optimizer)
        work = 2 if plan.optimizer == "sgd" else 14
        yield _row(
            name, 1, work * count, least, f"{work}·P over parameters, gradients and states",
            "one kernel: each read once, and written once if it changes", group="optimizer",
        )  # fmt: skip
