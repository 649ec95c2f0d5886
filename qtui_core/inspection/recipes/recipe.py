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
from qtui_core.schemes.granularity import Granularity, PerBlock, PerGroup, PerRow, PerTensor
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

    def grouped(self, *others: type) -> Granularity:
        """The granularity of the scheme if that is a group, the tensor or one of `others`; blocks
        of the flattened tensor are groups if rows have a whole number of them. Else rows."""
        assert self.scheme is not None
        assert self.scheme.granularity is not None
        granularity = self.scheme.granularity
        if isinstance(granularity, PerBlock) and self.columns % granularity.size == 0:
            return PerGroup(granularity.size)
        if isinstance(granularity, (PerGroup, PerTensor, *others)):
            return granularity
        return PerRow()


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
        for other in self.stand_ins:
            kinds.setdefault((other.scheme, other.instead, other.why), []).append(other.tensor)
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
    schemes = {text: Scheme.parse(text) for text in {*chosen.values()} if text}
    return tuple(
        RecipeTensor(
            info.name,
            schemes.get(chosen.get(info.name) or ""),
            *info.matrix,
            info.dtype,
            info.reading,
        )
        for info in infos
        if info.reading is not Reading.VECTOR and info.role is Role.VALUES
    )


#: The scheme nearest to that of a tensor among those that a tool has, None to leave the tensor
#: unquantized; and why, where that does not follow from the scheme.
Nearest = Callable[[RecipeTensor], tuple[Scheme | None, str]]


def kinds_of(
    tensors: Sequence[RecipeTensor], nearest: Nearest
) -> tuple[dict[str, Scheme | None], list[StandIn]]:
    """(module of a linear layer -> its scheme in the tool, None if it stays as stored; the
    substitutions)."""
    kinds: dict[str, Scheme | None] = {}
    left: list[StandIn] = []
    for tensor in tensors:
        if tensor.keeps or not tensor.is_linear:
            kinds |= {tensor.module: None} if tensor.is_linear else {}
            left += kept_as_stored(tensor, NOT_LINEAR)
        else:
            kinds[tensor.module], why = nearest(tensor)
            left += stands_in(tensor, kinds[tensor.module], why)
    return kinds, left


def stands_in(tensor: RecipeTensor, kind: Scheme | None, why: str = "") -> list[StandIn]:
    """The substitution for a tensor that gets `kind`; empty if that is its scheme."""
    instead = UNQUANTIZED if kind is None else str(kind)
    same = kind == tensor.scheme
    return [] if same else [StandIn(tensor.name, str(tensor.scheme), instead, why)]


def kept_as_stored(tensor: RecipeTensor, why: str) -> list[StandIn]:
    """The substitution for a tensor that stays as stored although it has a scheme."""
    scheme = tensor.scheme
    if scheme is None or scheme.format == {"BF16": "bf16", "F16": "fp16"}.get(tensor.dtype):
        return []
    if scheme.family is Family.CAST:
        why = "the tool keeps weights in the dtype that the model is loaded in"
    return [StandIn(tensor.name, str(scheme), UNQUANTIZED, why)]


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
    mixed = [g for g in fused_modules(kinds) if any(kinds[name] != kinds[g[0]] for name in g)]
    return tuple(
        f"vLLM does not load this model: it makes one module of {listed(names)}, which have "
        f"several types here{', and of others' * (len(mixed) > 1)}."
        for names in mixed[:1]
    )


def nearest_integers(tensor: RecipeTensor) -> Scheme:
    """Integers that never have fewer bits, symmetric with all codes or with an integer zero point.
    Codebooks and small floats of 4 bits become asymmetric integers with the same group, whose error
    on weights is about the same."""
    scheme = tensor.scheme
    assert scheme is not None
    is_integer = scheme.family is Family.INTEGER
    symmetric = scheme.symmetric if is_integer else scheme.bits != 4
    rule = "full" if symmetric else "asym"
    return Scheme.parse(f"int{scheme.bits}:{tensor.grouped()}:{rule}")


def with_whole_groups(tensor: RecipeTensor, scheme: Scheme) -> tuple[Scheme | None, str]:
    """The scheme, or None and why if its groups do not divide the rows of a tensor."""
    group = scheme.granularity.size if isinstance(scheme.granularity, PerGroup) else 1
    if tensor.columns % group == 0:
        return scheme, ""
    return None, f"rows of {tensor.columns} are no multiple of the group {group}"
