"""What low-rank adapters store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.plan.targets import rank_on
from qtui_core.memory.replay.record import Component
from qtui_core.memory.shape.model_shape import Embedding, Linear, ModelShape, Module, Parameter
from qtui_core.memory.shape.storage import StoredTensor

#: Name peft gives the one adapter of a model.
_ADAPTER: Final = "default"


def adapter_of(
    shape: ModelShape, plan: RunPlan, name: str, module: Module
) -> Iterator[StoredTensor]:
    """The two matrices over the module with this full name, none where it gets no adapter, in the
    adapter's type, which is float32 unless asked otherwise (peft, cast_adapter_dtype).

    Over a linear layer A is `[rank, inputs]` and B `[outputs, rank]`; over an embedding
    `[rank, rows]` and `[columns, rank]`; over stacked experts `[experts, outputs, inputs]` they
    are `[experts × rank, inputs]` and `[outputs, experts × rank]` (peft tuners/lora/layer.py).
    The names of the last are those of the parameter; peft's wrappers have none for it.
    """
    rank = rank_on(shape, plan, name, module)
    if not rank:
        return
    first, second = f"lora_A.{_ADAPTER}.weight", f"lora_B.{_ADAPTER}.weight"
    match module:
        case Linear():
            inputs, outputs = module.inputs, module.outputs
        case Embedding():
            first, second = f"lora_embedding_A.{_ADAPTER}", f"lora_embedding_B.{_ADAPTER}"
            inputs, outputs = module.rows, module.columns
        case Parameter():
            *experts, outputs, inputs = module.shape
            rank *= experts[0] if experts else 1
    yield _matrix(plan, f"{name}.{first}", (rank, inputs))
    yield _matrix(plan, f"{name}.{second}", (outputs, rank))


def _matrix(plan: RunPlan, name: str, shape: tuple[int, int]) -> StoredTensor:
    dtype = plan.adapter_dtype or "fp32"
    return StoredTensor(
        name,
        shape,
        dtype,
        Component.ADAPTERS,
        "adapter",
        requires_grad=True,
        loaded=None,
        prepared=dtype,
    )
