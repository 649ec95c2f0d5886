"""Recipes: their parts, and substitutes for schemes that a tool does not have."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from qtui_core.dataclass import dataclass
from qtui_core.models import Reading, TensorInfo
from qtui_core.models.quoting import listed
from qtui_core.models.tensors import Role
from qtui_core.quantities import plural
from qtui_core.schemes.granularity import PerBlock, PerGroup, PerRow, PerTensor
from qtui_core.schemes.scheme import Family, Scheme

#: The substitute for a scheme if the tool leaves the weight unquantized.
UNQUANTIZED: Final = "unquantized"
#: Why a tool that quantizes linear layers leaves a weight.
NOT_LINEAR: Final = "not the weight of a linear layer"
_EMBEDDING: Final = re.compile(
    r"(.*\.)?(embed_tokens|embed_in|embed_positions|tok_embeddings|wte|wpe|word_embeddings"
    r"|position_embeddings|token_type_embeddings|token_embd)\.weight"
)
_HEAD: Final = re.compile(r"(.*\.)?(lm_head|embed_out|output)\.weight")
#: Modules that vLLM fuses, with the name of the fused module.
_FUSED: Final = {
    "q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj",
}  # fmt: skip
_EXPERTS: Final = re.compile(r"(.*\.experts)\.\d+\.")


@dataclass(frozen=True)
class RecipeTensor:
    """A matrix of the model with its assigned scheme; None keeps it as stored. `rows` and `columns`
    are those of the matrix that is quantized, `dtype` is safetensors' name."""

    name: str
    scheme: Scheme | None
    rows: int
    columns: int
    dtype: str
    reading: Reading = Reading.MATRIX

    @property
    def module(self) -> str:
        """The name of the module with this weight."""
        return self.name.removesuffix(".weight")

    @property
    def is_embedding(self) -> bool:
        return _EMBEDDING.fullmatch(self.name) is not None

    @property
    def is_head(self) -> bool:
        return _HEAD.fullmatch(self.name) is not None

    @property
    def is_linear(self) -> bool:
        """Whether it is the weight of a linear layer, which is what most tools quantize."""
        weight = self.name.endswith(".weight") and self.reading is Reading.MATRIX
        return weight and not self.is_embedding

    @property
    def keeps(self) -> bool:
        """Whether the scheme is a dtype that counts as unquantized for tools."""
        return self.scheme is None or self.scheme.family is Family.CAST

    @property
    def group(self) -> int | None:
        """Elements of a row that share a scale; -1 for a whole row, 0 for the whole tensor, None
        for anything else. Blocks of the flattened tensor are groups if rows are whole blocks."""
        match self.scheme.granularity if self.scheme else None:
            case PerGroup(size):
                return size
            case PerBlock(size):
                return size if self.columns % size == 0 else None
            case PerRow():
                return -1
            case PerTensor():
                return 0
        return None


@dataclass(frozen=True)
class StandIn:
    """A tensor with a scheme that the tool does not have: what it gets `instead`, and why, if that
    does not follow from the scheme."""

    tensor: str
    scheme: str
    instead: str
    why: str = ""


@dataclass(frozen=True)
class ToolRecipe:
    """The text of the file for a tool, and how to use it; where it differs from the assignment; and
    notes on other differences of the tool, as sentences."""

    text: str
    use: str
    stand_ins: tuple[StandIn, ...] = ()
    notes: tuple[str, ...] = ()

    def sentences(self, tool: str) -> tuple[str, ...]:
        """What the tool cannot express, by scheme, with the tensors; then the notes."""
        kinds: dict[tuple[str, str, str], list[str]] = {}
        for each in self.stand_ins:
            kinds.setdefault((each.scheme, each.instead, each.why), []).append(each.tensor)
        differing = (
            f"{scheme} of {plural(len(names), 'tensor')} "
            f"{'stays unquantized' if instead == UNQUANTIZED else f'becomes {instead}'} "
            f"({why or f'{tool} has no such type'}): {listed(names)}."
            for (scheme, instead, why), names in kinds.items()
        )
        return (*differing, *self.notes)


def tensors_of(
    infos: Iterable[TensorInfo], chosen: Mapping[str, str | None]
) -> tuple[RecipeTensor, ...]:
    """All matrices of the model with the schemes of an assignment, by name. Matrices outside of it
    stay as stored."""
    return tuple(
        recipe_tensor(info, chosen.get(info.name))
        for info in infos
        if info.reading is not Reading.VECTOR and info.role is Role.VALUES
    )


def recipe_tensor(info: TensorInfo, scheme: str | None) -> RecipeTensor:
    parsed = Scheme.parse(scheme) if scheme else None
    return RecipeTensor(info.name, parsed, *info.matrix, info.dtype, info.reading)


@dataclass(frozen=True)
class ModuleKind:
    """What a tool gets for a module, None to leave it unquantized; and what is used `instead` of
    the scheme, "" if nothing is, and why."""

    value: Any
    instead: str = ""
    why: str = ""


def kinds_of(
    tensors: Sequence[RecipeTensor],
    kind_of: Callable[[RecipeTensor], ModuleKind],
    usable: Callable[[RecipeTensor], bool] = lambda tensor: tensor.is_linear,
    other: Callable[[RecipeTensor], str] = lambda tensor: NOT_LINEAR,
) -> tuple[dict[str, Any], list[StandIn]]:
    """(module -> what the tool gets for it, None if it stays as stored; the substitutions).
    `usable`: whether the tool quantizes a tensor at all; `other` says why not."""
    kinds: dict[str, Any] = {}
    left: list[StandIn] = []
    for tensor in tensors:
        if tensor.keeps or not usable(tensor):
            if tensor.is_linear:
                kinds[tensor.module] = None
            left += kept_as_stored(tensor, other(tensor))
            continue
        kind = kind_of(tensor)
        kinds[tensor.module] = kind.value
        if kind.instead:
            left.append(StandIn(tensor.name, str(tensor.scheme), kind.instead, kind.why))
    return kinds, left


def kept_as_stored(tensor: RecipeTensor, other: str) -> list[StandIn]:
    """The substitution for a tensor that stays as stored although it has a scheme. `other` is the
    reason if it does not follow from the scheme."""
    scheme = tensor.scheme
    if scheme is None or scheme.format == {"BF16": "bf16", "F16": "fp16"}.get(tensor.dtype):
        return []
    if scheme.family is Family.CAST:
        other = "the tool keeps weights in the dtype that the model is loaded in"
    return [StandIn(tensor.name, str(scheme), UNQUANTIZED, other)]


def as_json(whole: Mapping[str, Any]) -> str:
    return json.dumps(whole, indent=1) + "\n"


def fused_modules(names: Iterable[str]) -> list[list[str]]:
    """Groups of modules that vLLM fuses, and loads only if they have the same type: q, k and v of
    an attention, gate and up of a feed-forward part, the experts of a layer."""
    groups: dict[str, list[str]] = {}
    for name in names:
        before, _, last = name.rpartition(".")
        if experts := _EXPERTS.match(name):
            groups.setdefault(experts[1], []).append(name)
        elif last in _FUSED:
            groups.setdefault(f"{before}.{_FUSED[last]}", []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def vllm_note(kinds: Mapping[str, object]) -> tuple[str, ...]:
    """A note if vLLM would not load a model with these types of modules (name -> type)."""
    groups = fused_modules(kinds)
    mixed = [g for g in groups if any(kinds[name] != kinds[g[0]] for name in g)]
    if not mixed:
        return ()
    return (
        f"vLLM does not load this model: it makes one module of {listed(mixed[0])}, which have "
        f"several types here{', and of others' * (len(mixed) > 1)}.",
    )


def integer_standing_in(tensor: RecipeTensor) -> tuple[int, int, bool]:
    """The integers nearest to a scheme: (bits, group as in `RecipeTensor.group`, symmetric). They
    never have fewer bits. Codebooks and small floats of 4 bits become asymmetric integers with the
    same group, whose error on weights is about the same."""
    scheme = tensor.scheme
    assert scheme is not None
    is_integer = scheme.family is Family.INTEGER
    group = -1 if tensor.group is None else tensor.group
    return scheme.bits, group, scheme.symmetric if is_integer else scheme.bits != 4


def is_plain(scheme: Scheme) -> bool:
    """Whether elements are rounded to the nearest level and no outlier columns are kept, as
    in the tools."""
    return scheme.rounding == "nearest" and scheme.outlier_threshold is None


def short_group(tensor: RecipeTensor, group: int) -> str:
    """Why groups do not divide the rows of a tensor; "" if they do."""
    if group <= 0 or tensor.columns % group == 0:
        return ""
    return f"rows of {tensor.columns} are no multiple of the group {group}"
