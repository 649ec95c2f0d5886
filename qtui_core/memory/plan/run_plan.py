"""`resolve_for` fills in every option that a plan leaves open, and refuses plans that cannot run.
Every refusal names the contradiction and a way out."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Protocol

from qtui_core.errors import UsageError
from qtui_core.memory.devices.device import Device
from qtui_core.memory.dtypes import FLOATING, dtype_of
from qtui_core.memory.plan.choices import (
    QUANTS,
    UNPACKED,
    KbitPrep,
)
from qtui_core.memory.plan.option import options_of
from qtui_core.memory.plan.options import RunPlan
from qtui_core.memory.plan.refusals import check_against
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.shape.packings import STORED

#: The first compute capability with FP8 products.
_FP8: Final = (8, 9)


class Stored(Protocol):
    """How a checkpoint is stored: known from its shape, its configuration or a screen."""

    @property
    def dtype(self) -> str | None:
        """The dtype of its weights; None if unknown."""

    @property
    def packed_as(self) -> str | None:
        """The value of `quant` in a plan for this checkpoint if it is quantized; else None."""


def resolve_for(model: Stored | None, plan: RunPlan) -> RunPlan:
    """The plan with a value for every option, for a model, or for any model if `model` is None.
    Raises what `resolve` raises."""
    if model is None:
        return resolve(plan, None)
    return resolve(plan, model.dtype, model.packed_as)


def within_positions(shape: ModelShape, plan: RunPlan) -> RunPlan:
    """The plan with a sequence no longer than the learned positions of the model."""
    longest = shape.learned_positions
    if longest is None:
        return plan
    return replace(plan, sequence=max(1, min(plan.sequence, longest - plan.generate)))


def resolve(plan: RunPlan, stored_dtype: str | None, packed_as: str | None = None) -> RunPlan:
    """The plan with a value for every option, for a checkpoint stored as `stored_dtype`. If it is
    quantized, `packed_as` says how (`ModelShape.packed_as`), and it is not quantized again. An
    inference has no backward pass, so it has no checkpointing and a single batch. A training step
    generates nothing.

    Raises UsageError for an impossible plan, with what is wrong and what to do.
    """
    quantized = plan.method == "qlora"
    quant = plan.quant or packed_as or ("nf4-dq" if quantized else None)
    if packed_as is None and quant == UNPACKED:
        quant = None
    _check_stored(quant, packed_as)
    usual: KbitPrep = "none" if quant == STORED or plan.kernels == "fused" else "all"
    checkpointing = quantized if plan.checkpointing is None else plan.checkpointing
    plan = replace(
        plan,
        **{
            option.name: option.normal(getattr(plan, option.name))
            for option in options_of(type(plan))
        },
    )
    resolved = replace(
        plan,
        dtype=_computed_in(stored_dtype) if plan.dtype is None else plan.dtype,
        quant=quant,
        autocast=quantized if plan.autocast is None else plan.autocast,
        kbit_prep=plan.kbit_prep or (usual if quantized else "none"),
        adapter_dtype="fp32" if plan.adapter_dtype is None else plan.adapter_dtype,
        checkpointing=checkpointing and plan.trains,
    )
    _check(resolved, packed_as)
    return replace(resolved, generate=0) if plan.trains else replace(resolved, accumulation=1)


def _computed_in(stored_dtype: str | None) -> str:
    """The dtype to compute in: that of the checkpoint, bf16 if unknown. Raises UsageError for a
    dtype that is for storage only."""
    try:
        return dtype_of(stored_dtype or "bf16")
    except UsageError:
        raise UsageError(
            f"The configuration says that weights are stored as {stored_dtype!r}, in which no "
            f"model is computed here; say with --dtype what it is computed in: "
            f"{', '.join(FLOATING)}."
        ) from None


def plan_as_run(shape: ModelShape, plan: RunPlan, device: Device | None) -> RunPlan:
    """The plan as it runs on a device; every option of `plan` has a value. Raises UsageError if it
    is impossible for the model."""
    plan = plan_on(plan, device, shape)
    check_against(shape, plan)
    return plan


def plan_on(plan: RunPlan, device: Device | None, shape: ModelShape | None = None) -> RunPlan:
    """The plan as it runs on a device. Before Ampere there is no flash attention, and sdpa uses the
    memory-efficient kernel (check_flash_attention_hardware_support in
    ATen/native/transformers/cuda/sdp_utils.cpp). Without FP8 products transformers unpacks an FP8
    checkpoint (validate_environment of quantizer_finegrained_fp8.py)."""
    packing = None if shape is None else shape.packing
    if plan.quant == STORED and packing is not None and packing.method == "fp8":
        capability = None if device is None else device.capability
        if capability is not None and capability < _FP8:
            method = "lora" if plan.method == "qlora" else plan.method
            plan = replace(plan, method=method, quant=UNPACKED)
    if plan.attention != "sdpa" or has_flash(device):
        return plan
    return replace(plan, attention="efficient")


def has_flash(device: Device | None) -> bool:
    """Whether torch has flash attention on a device; True if nothing is known of it."""
    return device is None or device.capability is None or device.capability >= (8, 0)


def _check(plan: RunPlan, packed_as: str | None = None) -> None:
    """Raises UsageError for a plan, with a value for every option, that is impossible on every
    model whose checkpoint is quantized as `packed_as` says."""
    for option in options_of(type(plan)):
        option.check(getattr(plan, option.name))
        if option.refused and (sentence := option.refused(plan)):
            raise UsageError(sentence)
    if plan.tokens > 1 << 31:
        raise UsageError(
            f"A batch of {plan.batch:,} sequences of {plan.sequence:,} tokens is "
            f"{plan.tokens:,} tokens a step, more than the indices of any kernel reach."
        )
    _check_storage(plan, packed_as)
    _check_parallel(plan)


def _check_stored(quant: str | None, packed_as: str | None) -> None:
    """Raises UsageError if a checkpoint that is quantized as `packed_as` says (None: not at all)
    cannot have this `quant`."""
    if packed_as is None and quant == STORED:
        raise UsageError(
            f"--quant {STORED} is of a checkpoint that is quantized, and this one is not; choose "
            f"{' or '.join(QUANTS[:2])}, or leave out --quant."
        )
    if packed_as is not None and quant not in (packed_as, UNPACKED):
        raise UsageError(
            f"The checkpoint is quantized already, and transformers does not quantize it again: "
            f"--quant {quant} is for one that is not; leave out --quant."
        )


def _check_storage(plan: RunPlan, packed_as: str | None) -> None:
    if plan.method == "qlora" and not plan.quantized:
        choose = f"choose --quant {' or '.join(QUANTS[:2])}"
        raise UsageError(
            "QLoRA trains adapters over quantized weights, and the plan quantizes none; "
            f"{choose if packed_as is None else 'leave out --quant'}, or say --method lora."
        )
    # `check_against` checks what a quantized checkpoint allows.
    if plan.method == "lora" and plan.quantized and packed_as is None:
        raise UsageError(
            f"LoRA over weights stored as {plan.quant} is QLoRA; say --method qlora, or leave out "
            "--quant."
        )
    if plan.method == "full" and plan.quantized and packed_as is None:
        raise UsageError(
            f"Weights stored as {plan.quant} cannot be trained themselves, only adapters over "
            "them; use --method qlora, or leave out --quant."
        )
    if plan.method == "full" and plan.kbit_prep != "none":
        raise UsageError(
            "K-bit preparation freezes the weights, so nothing would be left to train fully; use "
            "--kbit-prep none, or --method lora or qlora."
        )


def _check_parallel(plan: RunPlan) -> None:
    ways = plan.tensor_parallel * plan.pipeline_parallel
    if plan.gpus % ways:
        raise UsageError(
            f"Tensor parallelism of {plan.tensor_parallel} and pipeline parallelism of "
            f"{plan.pipeline_parallel} take {ways} GPUs for one copy of the model, and "
            f"{plan.gpus} is no multiple of that; use --gpus {-(-plan.gpus // ways) * ways}."
        )
    if plan.zero and plan.data_parallel == 1:
        raise UsageError(
            f"ZeRO-{plan.zero} shards over GPUs that hold the same, and there is only one such "
            f"GPU; use --gpus {2 * ways} or more, or --zero 0."
        )
    if plan.zero in (1, 2) and not plan.trains:
        raise UsageError(
            f"ZeRO-{plan.zero} shards what training needs, which an inference has not; use "
            "--zero 3 for the weights, or --zero 0."
        )
    if plan.quantized and plan.quant != STORED and plan.tensor_parallel > 1:
        raise UsageError(
            f"Weights stored as {plan.quant} are one packed row without rows and columns, which "
            "tensor parallelism cannot cut; use --zero or pipeline parallelism, or no --quant."
        )
    if plan.quant == "int8" and plan.zero == 3:
        raise UsageError(
            "ZeRO-3 cannot shard weights of LLM.int8, whose row scales are not parameters; use "
            "--zero 2 or a 4-bit --quant."
        )
