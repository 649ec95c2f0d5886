"""Which modules and parameters peft puts low-rank adapters on, and with which rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.memory.plan.choices import ALL_LINEAR, chunk_of
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.shape.model_shape import Embedding, Linear, ModelShape, Module, Moe, Parameter
from qtui_core.memory.shape.modules import named_modules

#: Families whose experts were modules before transformers 5: for the old name of a module, the
#: ending of the parameter that peft takes for it (peft utils/transformers_weight_conversion.py,
#: _MOE_TARGET_MODULE_MAPPING). It replaces the names everywhere, so shared experts and dense layers
#: with these names get no adapter.
_MIXTRAL: Final = {
    "gate": "gate.weight",
    "w1": "gate_up_proj",
    "w3": "gate_up_proj",
    "w2": "down_proj",
}
_QWEN_MOE: Final = {
    "gate": "gate.weight",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
    "down_proj": "down_proj",
}
_STACKED: Final[dict[str, dict[str, str]]] = {
    "mixtral": _MIXTRAL,
    "qwen3_moe": _QWEN_MOE,
    "deepseek_v2": _QWEN_MOE,
    "deepseek_v3": _QWEN_MOE,
}

#: By family, tables on which peft puts an adapter that then does not work, or not together with the
#: others.
_NO_ADAPTER_ON: Final[dict[str, dict[str, str]]] = {
    "opt": {
        "model.decoder.embed_positions": (
            "OPT counts positions from the attention mask, which peft looks up in their adapter as "
            "it is, so a step fails where that mask is not of whole numbers"
        )
    },
    "t5": {
        "shared": (
            "T5 looks tokens up in modules of its encoder and decoder that share the weight of "
            "shared, so an adapter over shared itself is never trained"
        ),
        "encoder.embed_tokens": (
            "The adapters of T5's two lookups, one of the encoder and one of the decoder, are not "
            "built in; use --trace, which runs the real class"
        ),
    },
}


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
        embeddings whose full name equals it or ends in a dot and it (check_target_module_exists).
        """
        if isinstance(module, Parameter):
            return next((r for end, r in self.parameters.items() if _ends(name, end)), 0)
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
        for target, why in _NO_ADAPTER_ON.get(shape.family, {}).items():
            if any(_ends(target, name) for name in plan.lora_targets):
                raise UsageError(f"{why}; leave {target.rpartition('.')[2]} out of --lora-targets.")
        modules = [*named_modules(shape)]
        if shape.head is not None:
            modules.append((shape.head.name, shape.head))
        taken = [(name, module) for name, module in modules if self.rank_on(name, module)]
        if not taken:
            raise _nothing_taken(shape, plan, modules)
        without_head = plan.loss == "fused" or chunk_of(plan.loss)
        if without_head and any(name == self.head for name, _ in taken):
            raise UsageError(
                f"--loss {plan.loss} reads the weight of the head and not the head, so an adapter "
                "over it would never be trained, and TRL refuses that; leave the head out of "
                "--lora-targets, or use --loss stock."
            )
        over_experts = any(isinstance(module, Parameter) for _, module in taken)
        if over_experts and plan.quantized and shape.packing and shape.packing.experts == "packed":
            raise UsageError(
                f"peft folds adapters into the stacked experts, and those are stored as "
                f"{shape.packing.title}; train those of the attention alone, {_attention(modules)}."
            )
        if plan.lora_dropout and over_experts:
            raise UsageError(
                "Adapters over stacked experts work without dropout only; use --lora-dropout 0, or "
                f"train those of the attention alone, {_attention(modules)}."
            )


def _attention(modules: Sequence[tuple[str, Module]]) -> str:
    """The option that puts adapters on the projections of the attention."""
    parts = [name.split(".") for name, module in modules if isinstance(module, Linear)]
    names = dict.fromkeys(part[-1] for part in parts if "self_attn" in part)
    return f"--lora-targets {','.join(names)}"


def adapters_of(shape: ModelShape, plan: RunPlan) -> Adapters:
    """The adapters that a plan puts on a model. Raises UsageError for names that peft refuses
    together."""
    head = "" if shape.head is None else shape.head.name
    if not plan.adapts:
        return Adapters(0, (), frozenset(), {}, head, False)
    rank = plan.lora_rank
    modules, spared, parameters = _targets(shape.family, plan.lora_targets, rank)
    by_layer = any(part.isdigit() for target in plan.lora_targets for part in target.split("."))
    return Adapters(rank, modules, spared, parameters, head, by_layer)


@lru_cache(maxsize=64)
def _targets(
    family: str, names: tuple[str, ...], rank: int
) -> tuple[tuple[str, ...] | None, frozenset[str], Mapping[str, int]]:
    """`modules`, `spared` and `parameters` of the adapters that `names` ask for."""
    stacked = _STACKED.get(family, {})
    if names == (ALL_LINEAR,):
        taken = {stacked[old]: rank for old in stacked}
        modules, old_names = None, set(stacked)
    else:
        old_names = {old for name in names for old in stacked if _ends(name, old)}
        taken = {stacked[old]: rank for old in old_names}
        modules = tuple(n for n in names if not any(_ends(n, old) for old in stacked))
    fused = [old for old, new in stacked.items() if new == "gate_up_proj"]
    missing = [old for old in fused if old not in old_names]
    if 0 < len(missing) < len(fused):
        raise UsageError(
            f"The experts of {family} have {' and '.join(fused)} in one tensor, so peft wants "
            f"adapters on both or none; add {missing[0]}, or leave the other out."
        )
    if "gate_up_proj" in taken:
        taken["gate_up_proj"] = rank * len(fused)
    spared = frozenset(stacked) if modules is None else frozenset()
    return modules, spared, taken


def _ends(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _nothing_taken(
    shape: ModelShape, plan: RunPlan, modules: list[tuple[str, Module]]
) -> UsageError:
    known = dict.fromkeys(
        name.rpartition(".")[2] for name, module in modules if isinstance(module, Linear)
    )
    stacked = any(isinstance(layer.mlp, Moe) for layer in shape.layers)
    return UsageError(
        f"No module of {shape.architecture} is named {' or '.join(plan.lora_targets)}, so no "
        f"adapter would be trained; it has {', '.join(known)}."
        + (" Its experts are stacked in one tensor, which is no module." if stacked else "")
    )
