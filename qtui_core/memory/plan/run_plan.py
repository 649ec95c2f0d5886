"""`resolve_for` fills in every option that a plan leaves open, and refuses plans that cannot run.
Every refusal names the contradiction and a way out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from qtui_core.errors import UsageError
from qtui_core.memory.devices.device import Device
from qtui_core.memory.dtypes import FLOATING, dtype_of
from qtui_core.memory.plan.options import (
    ALL_LINEAR,
    QUANTS,
    UNPACKED,
    KbitPrep,
    RunPlan,
    options_of,
)
from qtui_core.memory.plan.targets import Stored, stored_of
from qtui_core.memory.shape.model_shape import Attention, ModelShape, Moe
from qtui_core.memory.shape.packings import STORED

#: The first compute capability with kernels for a packed checkpoint.
_FIRST: Final = {"fp8": (8, 9), "mxfp4": (7, 5)}


def resolve_for(model: ModelShape | Stored | None, plan: RunPlan) -> RunPlan:
    """The plan with a value for every option, for a model, or for any model if `model` is None.

    Of a quantized checkpoint it trains what can be trained, where the plan does not say: adapters
    over the stored weights if a library trains them, over the attention alone if experts are
    packed; else the weights of the checkpoint that it was made from. Raises what `resolve` raises.
    """
    stored = stored_of(model) if isinstance(model, ModelShape) else model or Stored()
    if stored.packed_as is not None and plan.quant is None and plan.trains:
        if plan.method == "full" or stored.untrained:
            plan = replace(plan, quant="nf4-dq" if plan.method == "qlora" else UNPACKED)
        else:
            narrow = stored.attention and plan.lora_targets == (ALL_LINEAR,)
            targets = stored.attention if narrow else plan.lora_targets
            plan = replace(plan, method="qlora", lora_targets=targets)
    again = stored.untrained and plan.trains
    return resolve(plan, stored.dtype, stored.packed_as, again=again)


def within_positions(longest: int | None, plan: RunPlan) -> RunPlan:
    """The plan with a sequence no longer than `longest`, the learned positions of the model."""
    if longest is None:
        return plan
    return replace(plan, sequence=max(1, min(plan.sequence, longest - plan.generate)))


def resolve(
    plan: RunPlan, stored_dtype: str | None, packed_as: str | None = None, *, again: bool = False
) -> RunPlan:
    """The plan with a value for every option, for a checkpoint stored as `stored_dtype`. If it is
    quantized, `packed_as` says how (`ModelShape.packed_as`), and it is not quantized again, unless
    `again` says that the plan is of the checkpoint that it was made from. An inference has no
    backward pass, so it has no checkpointing and a single batch. A training step generates nothing.

    Raises UsageError for an impossible plan, with what is wrong and what to do.
    """
    quantized = plan.method == "qlora"
    quant = plan.quant or packed_as or ("nf4-dq" if quantized else None)
    if packed_as is None and quant == UNPACKED:
        quant = None
    if packed_as is None and quant == STORED:
        raise UsageError(
            f"--quant {STORED} is of a checkpoint that is quantized, and this one is not; choose "
            f"{' or '.join(QUANTS[:2])}, or leave out --quant."
        )
    if packed_as is not None and quant not in (packed_as, UNPACKED, *(QUANTS if again else ())):
        raise UsageError(
            "The checkpoint is quantized already, and transformers does not quantize it again: "
            f"--quant {quant} is for one that is not; leave out --quant."
        )
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
    ATen/native/transformers/cuda/sdp_utils.cpp). Without kernels for them transformers unpacks FP8
    and MXFP4 (validate_environment of quantizer_finegrained_fp8.py and quantizer_mxfp4.py)."""
    packing = None if shape is None else shape.packing
    if plan.quant == STORED and packing is not None and packing.method in _FIRST:
        capability = None if device is None else device.capability
        if capability is not None and capability < _FIRST[packing.method]:
            method = "lora" if plan.method == "qlora" else plan.method
            plan = replace(plan, method=method, quant=UNPACKED)
    slow = plan.attention == "sdpa" and not has_flash(device)
    return replace(plan, attention="efficient") if slow else plan


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
    _refuse(_impossible(plan, packed_as))


#: Whether a plan is impossible for a reason, and the sentence that says so.
_Refusal = tuple[object, str]


def _refuse(rows: Iterable[_Refusal]) -> None:
    """Raises UsageError with the sentence of the first row that holds."""
    for holds, sentence in rows:
        if holds:
            raise UsageError(sentence)


def _impossible(plan: RunPlan, packed_as: str | None) -> tuple[_Refusal, ...]:
    """What is impossible on every model; `check_against` says what a quantized checkpoint does not
    allow."""
    plain = plan.quantized and packed_as is None
    ways = plan.tensor_parallel * plan.pipeline_parallel
    choose = (
        f"choose --quant {' or '.join(QUANTS[:2])}" if packed_as is None else "leave out --quant"
    )
    # fmt: off
    return (
        (plan.tokens > 1 << 31,
         f"A batch of {plan.batch:,} sequences of {plan.sequence:,} tokens is {plan.tokens:,} "
         "tokens a step, more than the indices of any kernel reach."),
        (plan.image_tokens > plan.sequence,
         f"Image tokens are part of a sequence; use --seq {plan.image_tokens} or more."),
        (plan.method == "qlora" and not plan.quantized,
         "QLoRA trains adapters over quantized weights, and the plan quantizes none; "
         f"{choose}, or say --method lora."),
        (plan.method == "lora" and plain,
         f"LoRA over weights stored as {plan.quant} is QLoRA; say --method qlora, or leave out "
         "--quant."),
        (plan.method == "full" and plain,
         f"Weights stored as {plan.quant} cannot be trained themselves, only adapters over them; "
         "use --method qlora, or leave out --quant."),
        (plan.method == "full" and plan.kbit_prep != "none",
         "K-bit preparation freezes the weights, so nothing would be left to train fully; use "
         "--kbit-prep none, or --method lora or qlora."),
        (plan.gpus % ways,
         f"Tensor parallelism of {plan.tensor_parallel} and pipeline parallelism of "
         f"{plan.pipeline_parallel} take {ways} GPUs for one copy of the model, and {plan.gpus} "
         f"is no multiple of that; use --gpus {-(-plan.gpus // ways) * ways}."),
        (plan.zero and plan.data_parallel == 1,
         f"ZeRO-{plan.zero} shards over GPUs that hold the same, and there is only one such GPU; "
         f"use --gpus {2 * ways} or more, or --zero 0."),
        (plan.zero in (1, 2) and not plan.trains,
         f"ZeRO-{plan.zero} shards what training needs, which an inference has not; use --zero 3 "
         "for the weights, or --zero 0."),
        (plan.quantized and plan.quant != STORED and plan.tensor_parallel > 1,
         f"Weights stored as {plan.quant} are one packed row without rows and columns, which "
         "tensor parallelism cannot cut; use --zero or pipeline parallelism, or no --quant."),
        (plan.quant == "int8" and plan.zero == 3,
         "ZeRO-3 cannot shard weights of LLM.int8, whose row scales are not parameters; use "
         "--zero 2 or a 4-bit --quant."),
    )
    # fmt: on


def check_against(shape: ModelShape, plan: RunPlan) -> None:
    """Raises UsageError if `plan`, which is possible in itself, is impossible for the model
    `shape`."""
    title, stages = shape.architecture, plan.pipeline_parallel
    styles = {layer.attention.style for layer in shape.layers}
    # fmt: off
    _refuse((
        (plan.trains and shape.head is None,
         f"{title} has no head to train on; use --method inference, or name a class with a head "
         "under architectures in config.json."),
        (plan.trains and plan.loss != "stock" and shape.is_encoder,
         f"--loss {plan.loss} is of models that predict the next token, and {title} does not; use "
         "--loss stock."),
        (shape.own_layers and plan.data_parallel > 1,
         "How GPUs share layers with the same weights is not built in; leave out --gpus."),
        *_impossible_packing(shape, plan),
        *_undivided(shape, plan.tensor_parallel),
        (stages > len(shape.layers),
         f"Pipeline parallelism in {stages} stages needs as many layers, and the model has "
         f"{len(shape.layers)}."),
        *_too_long(shape, plan),
        (plan.image_tokens and not (shape.tower and shape.tower.sizes["patches"]),
         f"No encoder of images of {title} is built in; leave out --image-tokens."),
        ((stages > 1 or plan.reentrant) and any(layer.gates for layer in shape.layers[:1]),
         "Embeddings of each layer are not built in for pipeline parallelism, nor for reentrant "
         "checkpointing; leave these out."),
        (plan.trains and plan.quantized and "gemma3n" in styles,
         f"{title} clips weights of AltUp in training, which packed ones do not allow; use "
         "--method lora or full with --quant none, or --method inference."),
        (plan.kernels == "fused" and styles != {"llama"},
         f"Fused kernels are made for layers of Llama's kind, and {title} has others; use "
         "--kernels torch."),
        (shape.is_encoder and plan.generate,
         "An encoder does not generate tokens, so there is no cache to hold; leave out the number "
         "of generated tokens."),
    ))
    # fmt: on


def _impossible_packing(shape: ModelShape, plan: RunPlan) -> tuple[_Refusal, ...]:
    """What a quantized checkpoint does not allow."""
    packing = shape.packing_under(plan.quant)
    if packing is None:
        return ()
    stored = f"The checkpoint is stored as {packing.title}"
    use = f"use --method {'inference' if packing.untrained else 'qlora'}, or --quant none"
    kept = plan.quant == STORED
    # fmt: off
    return (
        (plan.method == "full",
         f"{stored}, and packed weights cannot be trained themselves; {use}."),
        (plan.adapts and packing.untrained,
         f"{stored}, and no adapters are trained over that: {packing.untrained}; use --method "
         "inference, or --method lora with --quant none."),
        (plan.method == "lora",
         f"{stored}, and LoRA over packed weights is QLoRA; {use}."),
        (kept and (plan.tensor_parallel > 1 or plan.zero == 3),
         "How GPUs share weights that a checkpoint stores packed is not built in; use --zero 2 or "
         "less without --tensor-parallel, or pipeline parallelism."),
        (kept and plan.kbit_prep != "none" and packing.method in ("gptq", "hqq"),
         f"peft's k-bit preparation leaves all of {packing.title} in its type; use --kbit-prep "
         "none."),
        (kept and plan.kernels == "fused",
         "Fused kernels are made for 4-bit weights of bitsandbytes; use --kernels torch."),
    )
    # fmt: on


def _undivided(shape: ModelShape, ways: int) -> Iterator[_Refusal]:
    """What tensor parallelism does not divide."""
    # Equal layers are one object, and comparing is dear: of these there may be thousands.
    for layer in {id(layer): layer for layer in shape.layers}.values():
        attention, mlp = layer.attention, layer.mlp
        yield (
            ways > 1 and attention.style in ("delta", "gemma3n", "gemma4"),
            "How GPUs share a layer of linear attention, or of Gemma 3n or 4, is not built in; use "
            "--tensor-parallel 1, or pipeline parallelism.",
        )
        counts = {"attention heads": attention.heads}
        if isinstance(attention, Attention):
            counts["heads of keys and values"] = attention.kv_heads
        counts["MLP columns"] = mlp.intermediate if isinstance(mlp, Moe) else mlp.down.inputs
        for what, count in counts.items():
            if count % ways:
                allowed = [str(n) for n in range(1, min(count, 64) + 1) if count % n == 0]
                use = f"one of {', '.join(allowed)}" if allowed[1:] else "--tensor-parallel 1"
                divides = f"Tensor parallelism of {ways} does not divide {count} {what}"
                yield True, f"{divides}; use {use}."


def _too_long(shape: ModelShape, plan: RunPlan) -> Iterator[_Refusal]:
    longest = shape.learned_positions
    length = plan.sequence + plan.generate
    if longest is None or length <= longest:
        return
    more, use = "", f"--seq {longest - plan.generate} or less"
    if plan.generate:
        more = f", of which {plan.generate:,} are generated"
        if plan.generate >= longest:
            use = f"--generate {longest - 1} or less"
    asked = f"The model has learned {longest:,} positions, and {length:,} tokens are asked for"
    yield True, f"{asked}{more}; use {use}."
