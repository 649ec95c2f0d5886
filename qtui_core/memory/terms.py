"""What the bytes at the peak are: terms with a formula, its numbers, how it is known, and a source.

Every buffer alive at the peak belongs to one term, so that terms sum to the peak with nothing left
over. Formulas are found from the sizes of the buffers: the shortest product of the model's and the
plan's sizes that gives their bytes exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import prod
from typing import Final, Literal

from qtui_core.memory.plan import RunPlan
from qtui_core.memory.record import Component
from qtui_core.memory.shape import Attention, Mlp, ModelShape
from qtui_core.memory.timeline import STACK, Allocation

Basis = Literal["exact", "derived", "calibrated"]


@dataclass(frozen=True)
class Term:
    """Bytes with their reason.

    Attributes:
        name: what they are.
        formula: in the symbols of `Symbols`, in bytes.
        basis: "exact" where the bytes follow from the configuration, "derived" where they follow
            from the operations of a step and the rules of autograd and allocator, "calibrated"
            where they were measured.
        source: where rule or measurement stand.
        component: the component that a finer term is a part of; empty for components.
        numbers: the formula with numbers.
        count: buffers.
    """

    name: str
    bytes: int
    formula: str
    basis: Basis
    source: str
    component: str = ""
    numbers: str = ""
    count: int = 1


SLACK: Final = "unsplit rest of blocks"

#: Component -> (how it is known, where from).
_KNOWN: Final[Mapping[Component, tuple[Basis, str]]] = {
    Component.WEIGHTS: ("exact", "shapes of the parameters in config.json"),
    Component.QUANTIZATION: ("exact", "quantize_4bit, int8_vectorwise_quant of bitsandbytes"),
    Component.ADAPTERS: ("exact", "peft tuners/lora/layer.py: rank x (inputs + outputs)"),
    Component.BUFFERS: ("exact", "register_buffer of the model class"),
    Component.WORKSPACES: ("calibrated", "ATen/cuda/CublasHandlePool.cpp, by torch and GPU"),
    Component.OPTIMIZER: ("exact", "state of the optimizer class"),
    Component.CACHE: ("exact", "DynamicCache of transformers"),
    Component.GRADIENTS: ("derived", "AccumulateGrad: the type and shape of the parameter"),
    Component.INPUTS: ("exact", "batch of int64 tokens, labels and masks"),
    Component.ACTIVATIONS: ("derived", "what autograd saves in the forward pass"),
    Component.LOSS: ("derived", "cross entropy of the chosen loss"),
    Component.TEMPORARIES: ("derived", "what the operation at the peak holds"),
}  # fmt: skip


class Symbols:
    """The sizes of a model and a plan by the letters that formulas use."""

    def __init__(self, shape: ModelShape, plan: RunPlan) -> None:
        values: dict[str, int] = {"N": plan.tokens, "h": shape.hidden, "V": shape.vocabulary}
        means = {"N": "tokens, batch x sequence", "h": "hidden size", "V": "vocabulary"}
        layer = shape.layers[0] if shape.layers else None
        if layer is not None and isinstance(layer.mlp, Mlp):
            values["I"] = layer.mlp.down.inputs
            means["I"] = "MLP width"
        if layer is not None and isinstance(layer.attention, Attention):
            attention = layer.attention
            values["a"] = attention.heads * attention.head_dim
            values["k"] = attention.kv_heads * attention.head_dim
            values["H"] = attention.heads
            means["a"] = "heads x head size"
            means["k"] = "key-value heads x head size"
            means["H"] = "heads"
        values["S"] = plan.sequence
        means["S"] = "sequence"
        if plan.adapts:
            values["r"] = plan.lora_rank
            means["r"] = "rank of adapters"
        self.values = values
        self.means = means
        self._found = self._products()

    def formula(self, nbytes: int) -> tuple[str, str] | None:
        """(formula, the same with numbers) of a buffer's bytes; None where no product fits."""
        names = self._found.get(nbytes)
        if names is None:
            return None
        factor = nbytes // prod(self.values[name] for name in names)
        letters = " ".join(names)
        numbers = " x ".join(f"{self.values[name]:,}" for name in names)
        return f"{factor} {letters}", f"{factor} x {numbers}"

    def _products(self) -> dict[int, tuple[str, ...]]:
        """Bytes -> names, the shortest first: one to three symbols times 1, 2, 4 or 8 bytes."""
        found: dict[int, tuple[str, ...]] = {}
        names = tuple(name for name, value in self.values.items() if value > 1)
        for count in (1, 2, 3):
            for chosen in combinations_with_replacement(names, count):
                if not _sensible(chosen):
                    continue
                size = prod(self.values[name] for name in chosen)
                for factor in (2, 4, 1, 8):
                    found.setdefault(factor * size, chosen)
        return found


def _sensible(names: tuple[str, ...]) -> bool:
    """Products that tensors have: tokens once, and three factors only for scores and heads."""
    if len(names) < 3:
        return names not in (("N", "N"), ("V", "V"), ("S",))
    return names in (("N", "H", "S"), ("S", "S", "H"))


def terms_at(alive: Iterable[Allocation], symbols: Symbols) -> tuple[Term, ...]:
    """One term for all buffers that are the same thing and have one size, by component and then
    by bytes. They sum to the bytes alive."""
    groups: dict[tuple[Component, str, int], list[int]] = {}
    for allocation in alive:
        key = (allocation.component, name_of(allocation), allocation.asked)
        group = groups.setdefault(key, [0, 0])
        group[0] += allocation.bytes
        group[1] += 1
    order = {component: index for index, component in enumerate(STACK)}
    found = []
    for (component, name, asked), (nbytes, count) in groups.items():
        basis, source = _KNOWN[component]
        formula, numbers = _counted(count, asked, nbytes, symbols)
        found.append(Term(name, nbytes, formula, basis, source, component.value, numbers, count))
    found.sort(key=lambda term: -term.bytes)
    found.sort(key=lambda term: order[Component(term.component)])
    return tuple(found)


def components_of(terms: Iterable[Term], symbols: Symbols) -> tuple[Term, ...]:
    """The terms of each component as one, in the order of the stack. The formula is that of its
    parts, where these are few; of the largest and how many others there are, where not."""
    parts: dict[str, list[Term]] = {}
    for term in terms:
        parts.setdefault(term.component, []).append(term)
    found = []
    for name, members in parts.items():
        basis, source = _KNOWN[Component(name)]
        formulas = [_plain(term) for term in members[:3]]
        numbers = [term.numbers for term in members[:3]]
        if len(members) > 3:
            rest = sum(term.bytes for term in members[3:])
            formulas.append(f"{rest:,} in {len(members) - 3} smaller terms")
            numbers.append(f"{rest:,}")
        found.append(
            Term(
                name,
                sum(term.bytes for term in members),
                " + ".join(formulas),
                basis,
                source,
                numbers=" + ".join(numbers),
                count=sum(term.count for term in members),
            )
        )
    return tuple(found)


def slack_term(nbytes: int) -> Term:
    """What blocks are larger than what was asked of them."""
    return Term(
        SLACK,
        nbytes,
        "blocks of more than 1 MiB are cut only where more than 1 MiB is left",
        "derived",
        "should_split in c10/cuda/CUDACachingAllocator.cpp",
        numbers=f"{nbytes:,}",
    )


#: Components whose labels are names of parameters, which say where they are.
_NAMED: Final = frozenset(
    (
        Component.WEIGHTS,
        Component.QUANTIZATION,
        Component.ADAPTERS,
        Component.BUFFERS,
        Component.OPTIMIZER,
        Component.WORKSPACES,
        Component.INPUTS,
    )
)
_INDEX: Final = re.compile(r"\.\d+(?=\.|$)")


def name_of(allocation: Allocation) -> str:
    """What a buffer is and where it was made; indices of layers and experts become stars."""
    label, module = allocation.label, allocation.module
    if label.component in _NAMED or not module:
        return _INDEX.sub(".*", label.what)
    return f"{_INDEX.sub('.*', label.what)} of {_INDEX.sub('.*', module)}"


def _counted(count: int, asked: int, nbytes: int, symbols: Symbols) -> tuple[str, str]:
    found = symbols.formula(asked)
    formula, numbers = found or (f"{asked:,}", f"{asked:,}")
    if nbytes != count * asked:
        formula, numbers = f"r512({formula})", f"{nbytes // count:,}"
    if count == 1:
        return formula, numbers
    return f"{count} x {formula}", f"{count} x {numbers}"


def _plain(term: Term) -> str:
    return f"{term.formula} ({term.name})"
