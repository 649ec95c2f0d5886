"""Which modules low-rank adapters are put on, and what an adapter stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qtui_core.errors import UsageError
from qtui_core.memory.plan import RunPlan
from qtui_core.memory.plan_choices import ALL_LINEAR
from qtui_core.memory.record import Component
from qtui_core.memory.shape import Embedding, Linear, ModelShape, Module, Moe, named_modules
from qtui_core.memory.storage import StoredTensor

#: Name peft gives the one adapter of a model.
_ADAPTER: Final = "default"


def is_target(shape: ModelShape, plan: RunPlan, name: str, module: Module) -> bool:
    """Whether peft puts an adapter on the module with this full name.

    "all-linear" takes every linear layer, Conv1D of GPT-2 too, but the one that gives the logits
    (peft tuners_utils.py, _maybe_include_all_linear_layers); a name takes all modules whose full
    name is it or ends in a dot and it (check_target_module_exists), linear ones and embeddings.
    """
    if not plan.adapts:
        return False
    if plan.lora_targets == (ALL_LINEAR,):
        head = shape.head
        return isinstance(module, Linear) and (head is None or name != head.name)
    return isinstance(module, Linear | Embedding) and any(
        name == target or name.endswith(f".{target}") for target in plan.lora_targets
    )


def adapter_of(plan: RunPlan, name: str, module: Module) -> Iterator[StoredTensor]:
    """The two matrices over a module: A `[rank, inputs]` and B `[outputs, rank]`, in the adapter's
    type, which is float32 unless asked otherwise (peft, cast_adapter_dtype). Over an embedding A
    is `[rank, rows]` and B `[columns, rank]`."""
    match module:
        case Linear():
            yield _matrix(plan, f"{name}.lora_A.{_ADAPTER}.weight", plan.lora_rank, module.inputs)
            yield _matrix(plan, f"{name}.lora_B.{_ADAPTER}.weight", module.outputs, plan.lora_rank)
        case Embedding():
            yield _matrix(plan, f"{name}.lora_embedding_A.{_ADAPTER}", plan.lora_rank, module.rows)
            yield _matrix(
                plan, f"{name}.lora_embedding_B.{_ADAPTER}", module.columns, plan.lora_rank
            )


def check_targets(shape: ModelShape, plan: RunPlan) -> None:
    """Raises UsageError where the plan trains adapters and no module gets one."""
    if not plan.adapts:
        return
    modules = [*named_modules(shape)]
    if shape.head is not None:
        modules.append((shape.head.name, shape.head))
    if any(is_target(shape, plan, name, module) for name, module in modules):
        return
    known = dict.fromkeys(
        name.rpartition(".")[2] for name, module in modules if isinstance(module, Linear)
    )
    stacked = any(isinstance(layer.mlp, Moe) for layer in shape.layers)
    raise UsageError(
        f"No module of {shape.architecture} is named {' or '.join(plan.lora_targets)}, so no "
        f"adapter would be trained; it has {', '.join(known)}."
        + (" Its experts are stacked in one tensor, which is no module." if stacked else "")
    )


def _matrix(plan: RunPlan, name: str, rows: int, columns: int) -> StoredTensor:
    dtype = plan.adapter_dtype or "fp32"
    return StoredTensor(
        name,
        (rows, columns),
        dtype,
        Component.ADAPTERS,
        "adapter",
        requires_grad=True,
        loaded=None,
        prepared=dtype,
    )
