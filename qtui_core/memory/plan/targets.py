"""Which modules and parameters peft puts low-rank adapters on, and with which rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.memory.plan.options import ALL_LINEAR, RunPlan
from qtui_core.memory.shape.model_shape import (
    Embedding,
    Linear,
    ModelShape,
    Module,
    Moe,
    Parameter,
    named_modules,
)

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
