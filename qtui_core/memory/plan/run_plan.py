"""`resolve_for` fills in every option that a plan leaves open, and refuses plans that cannot run.
Every refusal names the contradiction and a way out. `adapters_of` says which modules and parameters
peft puts low-rank adapters on, and with which rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from qtui_core.dataclass import dataclass
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
from qtui_core.memory.shape.model_shape import (
    Attention,
    Embedding,
    Linear,
    ModelShape,
    Module,
    Moe,
    Parameter,
    named_modules,
)
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
        (why := without_step(shape, plan), f"{why} Use --method lora with --quant none."),
        (plan.kernels == "fused" and styles != {"llama"},
         f"Fused kernels are made for layers of Llama's kind, and {title} has others; use "
         "--kernels torch."),
        (shape.is_encoder and plan.generate,
         "An encoder does not generate tokens, so there is no cache to hold; leave out the number "
         "of generated tokens."),
    ))
    # fmt: on


def without_step(shape: ModelShape, plan: RunPlan) -> str:
    """Why the class of a model cannot run the step of a plan that other classes can; empty if it
    can. Every option of `plan` has a value."""
    gates = (gate for layer in shape.layers[:1] for gate in layer.gates)
    plain = shape.packing_under(plan.quant) is None
    packed = any(gate.name.endswith("_coefs") and (plain or gate.layout) for gate in gates)
    if not (plan.trains and plan.quantized and packed):
        return ""
    return (
        f"{shape.architecture} of transformers clips weights of AltUp in each training step, which "
        "packed ones do not allow: in practice they are left out of the quantization."
    )


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


# ---------------------------------------------------------------------- what adapters are put on

#: Families whose experts were modules before transformers 5: for the old name of a module, the
#: ending of the parameter that peft takes for it (peft utils/transformers_weight_conversion.py,
#: _MOE_TARGET_MODULE_MAPPING). It replaces the names everywhere, so shared experts and dense layers
#: with these names get no adapter.
_MIXTRAL: Final = {
    "gate": "gate.weight", "w1": "gate_up_proj", "w3": "gate_up_proj", "w2": "down_proj",
}  # fmt: skip
_QWEN_MOE: Final = {
    "gate": "gate.weight", "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj",
    "down_proj": "down_proj",
}  # fmt: skip
#: Model types by that table (_MODEL_TO_CONVERSION_PATTERN of peft 0.21).
_STACKED: Final = dict.fromkeys(("minimax", "minimax_m2", "mixtral"), _MIXTRAL) | dict.fromkeys(
    (
        "afmoe", "cohere2_moe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1",
        "ernie4_5_moe", "exaone_moe", "flex_olmo", "glm4_moe", "glm4_moe_lite", "glm4v_moe",
        "glm_moe_dsa", "hunyuan_v1_moe", "longcat_flash", "olmoe", "qwen3_moe", "qwen3_next",
        "qwen3_omni_moe", "qwen3_omni_moe_text", "qwen3_omni_moe_thinker", "solar_open",
    ),
    _QWEN_MOE,
)  # fmt: skip


@dataclass(frozen=True)
class Adapters:
    """Which modules and parameters of a model get an adapter.

    Attributes:
        rank: of an adapter over a module.
        modules: full names or endings; None for every linear layer except the output layer.
        spared: last parts of names that `modules` does not include.
        parameters: endings of names of parameters, and the rank over each.
        head: name of the output layer; empty if there is none.
        by_layer: whether a target names a layer by its number.
    """

    rank: int
    modules: tuple[str, ...] | None
    spared: frozenset[str]
    parameters: Mapping[str, int]
    head: str
    by_layer: bool

    def rank_on(self, name: str, module: Module) -> int:
        """Rank of the adapter on the module with this full name; 0 if it gets none.

        "all-linear" means every linear layer, and GPT-2's Conv1D, except the output layer (peft
        tuners_utils.py, _maybe_include_all_linear_layers). A name means all linear layers and
        embeddings whose full name equals it or ends in a dot and it (check_target_module_exists);
        with a dot, "experts.down_proj", stacked experts, too (LoraConfig.target_parameters).
        """
        if isinstance(module, Parameter):
            asked = any("." in target and _ends(name, target) for target in self.modules or ())
            adapted = (r for end, r in self.parameters.items() if _ends(name, end))
            return next(adapted, self.rank if asked else 0)
        if name.rpartition(".")[2] in self.spared:
            return 0
        if self.modules is None:
            taken = isinstance(module, Linear) and name != self.head
        else:
            taken = isinstance(module, Linear | Embedding) and any(
                _ends(name, target) for target in self.modules
            )
        return self.rank if taken else 0

    def check(self, shape: ModelShape, plan: RunPlan) -> None:
        """Raises UsageError if the plan trains adapters and no module gets one, or if peft refuses
        one of those modules."""
        if not plan.adapts:
            return
        modules = [*named_modules(shape)]
        if shape.head is not None:
            modules.append((shape.head.name, shape.head))
        taken = [(name, module) for name, module in modules if self.rank_on(name, module)]
        if not taken:
            known = dict.fromkeys(n.rpartition(".")[2] for n, m in modules if isinstance(m, Linear))
            stacked = any(isinstance(layer.mlp, Moe) for layer in shape.layers)
            raise UsageError(
                f"No module of {shape.architecture} is named {' or '.join(plan.lora_targets)}, so "
                f"no adapter would be trained; it has {', '.join(known)}."
                + " Its experts are stacked in one tensor, which is no module."
                * stacked
            )
        for name, module in taken:
            if isinstance(module, Embedding) and module.no_adapter:
                out = name.rpartition(".")[2]
                raise UsageError(f"{module.no_adapter}; leave {out} out of --lora-targets.")
        if plan.loss == "fused" and any(name == self.head for name, _ in taken):
            raise UsageError(
                f"--loss {plan.loss} reads the weight of the head and not the head, so an adapter "
                "over it would never be trained, and TRL refuses that; leave the head out of "
                "--lora-targets, or use --loss stock."
            )
        over_experts = any(isinstance(module, Parameter) for _, module in taken)
        alone = ",".join(_attention_names(modules))
        alone = f"train those of the attention alone, --lora-targets {alone}"
        packing = shape.packing_under(plan.quant)
        if over_experts and packing and packing.experts == "packed":
            raise UsageError(
                f"peft folds adapters into the stacked experts, and those are stored as "
                f"{packing.title}; {alone}."
            )
        if plan.lora_dropout and over_experts:
            raise UsageError(
                "Adapters over stacked experts work without dropout only; use --lora-dropout 0, or "
                f"{alone}."
            )


def _attention_names(modules: Sequence[tuple[str, Module]]) -> tuple[str, ...]:
    """The targets that are the projections of the attention."""
    parts = [name.split(".") for name, module in modules if isinstance(module, Linear)]
    return tuple(dict.fromkeys(part[-1] for part in parts if "self_attn" in part))


@dataclass(frozen=True)
class Stored:
    """How a checkpoint is stored, and what of it can be trained.

    Attributes:
        dtype: of its weights; None if unknown.
        packed_as: the `quant` of a plan that keeps it as it is; None if it is not quantized.
        untrained: whether no library trains adapters over its packed weights.
        attention: the targets that stand for all linear layers if packed experts have none; else
            empty.
    """

    dtype: str | None = None
    packed_as: str | None = None
    untrained: bool = False
    attention: tuple[str, ...] = ()


def stored_of(shape: ModelShape) -> Stored:
    """How the checkpoint of a model is stored."""
    packing = shape.packing
    if packing is None:
        return Stored(shape.dtype)
    attention: tuple[str, ...] = ()
    if packing.experts == "packed":
        modules = [*named_modules(shape)]
        adapters = adapters_of(shape, RunPlan(method="qlora"))
        if any(isinstance(m, Parameter) and adapters.rank_on(n, m) for n, m in modules):
            attention = _attention_names(modules)
    return Stored(shape.dtype, packing.quant, bool(packing.untrained), attention)


def adapters_of(shape: ModelShape, plan: RunPlan) -> Adapters:
    """The adapters that a plan puts on a model. Raises UsageError for names that peft refuses
    together."""
    head = "" if shape.head is None else shape.head.name
    if not plan.adapts:
        return Adapters(0, (), frozenset(), {}, head, False)
    rank = plan.lora_rank
    # Not cached: a rank may carry the letter of a formula, which an equal number lacks.
    modules, spared, times = _targets(shape.family, plan.lora_targets)
    parameters = {name: rank * count for name, count in times.items()}
    by_layer = any(part.isdigit() for target in plan.lora_targets for part in target.split("."))
    return Adapters(rank, modules, spared, parameters, head, by_layer)


@lru_cache(maxsize=64)
def _targets(
    family: str, names: tuple[str, ...]
) -> tuple[tuple[str, ...] | None, frozenset[str], Mapping[str, int]]:
    """`modules` and `spared` of the adapters that `names` ask for, and how many ranks the
    `parameters` get."""
    stacked = _STACKED.get(family, {})
    if names == (ALL_LINEAR,):
        modules, old_names = None, set(stacked)
    else:
        old_names = {old for name in names for old in stacked if _ends(name, old)}
        modules = tuple(n for n in names if not any(_ends(n, old) for old in stacked))
    taken = {stacked[old]: 1 for old in stacked if old in old_names}
    fused = [old for old, new in stacked.items() if new == "gate_up_proj"]
    missing = [old for old in fused if old not in old_names]
    if 0 < len(missing) < len(fused):
        raise UsageError(
            f"The experts of {family} have {' and '.join(fused)} in one tensor, so peft wants "
            f"adapters on both or none; add {missing[0]}, or leave the other out."
        )
    if "gate_up_proj" in taken:
        taken["gate_up_proj"] = len(fused)
    spared = frozenset(stacked) if modules is None else frozenset()
    return modules, spared, taken


def _ends(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")
