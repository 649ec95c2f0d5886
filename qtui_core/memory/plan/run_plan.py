"""The door by which a plan enters: behind it nothing of the plan is open."""

from __future__ import annotations

from dataclasses import replace

from qtui_core.errors import UsageError
from qtui_core.memory.dtypes import FLOATING, dtype_of
from qtui_core.memory.plan.choices import (
    UNPACKED,
    AttentionKernel,
    KbitPrep,
    Method,
    Optimizer,
    chunk_of,
    parse_loss,
    parse_targets,
    without_logits,
)
from qtui_core.memory.plan.option import options_of
from qtui_core.memory.plan.options import RunPlan
from qtui_core.memory.plan.refusals import check, check_against, check_storage, learned_positions
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.shape.packings import STORED


def resolve_for(shape: ModelShape, plan: RunPlan) -> RunPlan:
    """The plan with nothing left open, for a model. Raises what `resolve` does."""
    return resolve(plan, shape.dtype, shape.packed_as)


def within_positions(shape: ModelShape, plan: RunPlan) -> RunPlan:
    """The plan with a sequence no longer than a model has learned positions for."""
    longest = learned_positions(shape)
    if longest is None:
        return plan
    return replace(plan, sequence=max(1, min(plan.sequence, longest - plan.generate)))


def resolve(plan: RunPlan, stored_dtype: str | None, packed_as: str | None = None) -> RunPlan:
    """The plan with nothing left open, for a checkpoint stored as `stored_dtype`, or quantized as
    `packed_as` says (`ModelShape.packed_as`): it is not quantized again. An inference
    has no backward pass, so checkpointing is off in it and there is one batch; a step of training
    generates nothing.

    Raises UsageError for a plan that cannot be, naming what is wrong and what to do.
    """
    quantized = plan.method == "qlora"
    quant = plan.quant or packed_as or ("nf4-dq" if quantized else None)
    if packed_as is None and quant == UNPACKED:
        quant = None
    check_storage(quant, packed_as)
    usual: KbitPrep = "none" if quant == STORED or plan.kernels == "fused" else "all"
    checkpointing = quantized if plan.checkpointing is None else plan.checkpointing
    plan = replace(plan, **{option.name: option.normal(plan) for option in options_of(type(plan))})
    resolved = replace(
        plan,
        dtype=_computed_in(stored_dtype) if plan.dtype is None else plan.dtype,
        quant=quant,
        autocast=quantized if plan.autocast is None else plan.autocast,
        kbit_prep=plan.kbit_prep or (usual if quantized else "none"),
        adapter_dtype="fp32" if plan.adapter_dtype is None else plan.adapter_dtype,
        checkpointing=checkpointing and plan.trains,
    )
    check(resolved, packed_as)
    return replace(resolved, generate=0) if plan.trains else replace(resolved, accumulation=1)


def _computed_in(stored_dtype: str | None) -> str:
    """The type of a checkpoint, bf16 where it is not known. Raises UsageError for one that weights
    are only stored in."""
    try:
        return dtype_of(stored_dtype or "bf16")
    except UsageError:
        raise UsageError(
            f"The configuration says that weights are stored as {stored_dtype!r}, in which no "
            f"model is computed here; say with --dtype what it is computed in: "
            f"{', '.join(FLOATING)}."
        ) from None


__all__ = [
    "AttentionKernel",
    "KbitPrep",
    "Method",
    "Optimizer",
    "RunPlan",
    "UsageError",
    "check_against",
    "chunk_of",
    "parse_loss",
    "parse_targets",
    "resolve",
    "resolve_for",
    "within_positions",
    "without_logits",
]
