"""What the bytes at the peak are: terms with a formula, its numbers, how it is known, and a source.

Every buffer alive at the peak belongs to one term, so that terms sum to the peak with nothing left
over. Formulas are found from the sizes of the buffers: the shortest product of the model's and the
plan's sizes that gives their bytes exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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


#: What stays from one step to the next.
RESIDENT: Final = frozenset(
    (
        Component.WEIGHTS,
        Component.QUANTIZATION,
        Component.ADAPTERS,
        Component.BUFFERS,
        Component.OPTIMIZER,
        Component.WORKSPACES,
    )
)
#: What has the shapes of parameters.
STANDING: Final = RESIDENT | {Component.GRADIENTS}
#: Components whose labels are names, which say where they are.
_NAMED: Final = RESIDENT | {Component.INPUTS}

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
    """The sizes of a model and a plan by the letters that formulas use; those of the plan alone
    where the shape is not known."""

    def __init__(self, shape: ModelShape | None, plan: RunPlan) -> None:
        values: dict[str, int] = {"N": plan.tokens}
        means = {"N": "tokens, batch x sequence"}
        layer = None
        if shape is not None:
            values |= {"h": shape.hidden, "V": shape.vocabulary}
            means |= {"h": "hidden size", "V": "vocabulary"}
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
        # Bytes of an element of what is quantized, which is nearly all there is.
        self._packed = "" if plan.quant is None else "1" if plan.quant == "int8" else "1/2"

    def formula(self, nbytes: int, component: Component) -> tuple[str, str] | None:
        """(formula, the same with numbers) of a buffer's bytes; None where no product fits. What
        stands still is of the model's sizes, what flows of the tokens'. Of sizes that are equal
        the first is written."""
        entry = None
        if component is Component.QUANTIZATION:
            entry = self._constants.get(nbytes)
        if entry is None:
            found = self._standing if component in STANDING else self._flowing
            entry = found.get(nbytes)
        if entry is None:
            return None
        factor, names = entry
        numbers = " x ".join(f"{self.values[name]:,}" for name in names)
        return f"{factor} {' '.join(names)}", f"{factor} x {numbers}"

    @cached_property
    def _constants(self) -> dict[int, tuple[str, tuple[str, ...]]]:
        """Bytes -> (factor, names) of the constants of a quantized matrix."""
        return self._table(_pairs(self._sizes), _CONSTANTS)

    @cached_property
    def _standing(self) -> dict[int, tuple[str, tuple[str, ...]]]:
        """Bytes -> (factor, names) of parameters and their states."""
        single = [(name,) for name in self._sizes]
        factors = {self._packed: _STORED[self._packed], **_STORED} if self._packed else _STORED
        return self._table(_pairs(self._sizes), factors) | self._table(single, factors)

    @property
    def _sizes(self) -> list[str]:
        return [name for name in self.values if name not in ("N", "S", "H")]

    @cached_property
    def _flowing(self) -> dict[int, tuple[str, tuple[str, ...]]]:
        """Bytes -> (factor, names) of what is made of tokens."""
        widths = [name for name in self.values if name not in ("N", "S")]
        products: list[tuple[str, ...]] = [("N", name) for name in widths]
        products += [("S", name) for name in widths]
        products += [("N", "H", "S"), ("N", "S")] if "H" in widths else [("N", "S")]
        found = self._table([*products, *_pairs(widths)], _COMPUTED)
        return found | self._table([("N",)], _COMPUTED)

    def _table(
        self, products: Iterable[tuple[str, ...]], factors: Mapping[str, tuple[int, int]]
    ) -> dict[int, tuple[str, tuple[str, ...]]]:
        found: dict[int, tuple[str, tuple[str, ...]]] = {}
        sizes = [(names, prod(self.values[name] for name in names)) for names in products]
        # The usual bytes of an element first: 2 N I is meant where 8 N h is as many.
        for text, (over, under) in factors.items():
            for names, size in sizes:
                found.setdefault(-(-over * size // under), (text, names))
        return found


#: Bytes an element is computed in.
_COMPUTED: Final = {"2": (2, 1), "4": (4, 1), "1": (1, 1), "8": (8, 1)}
#: Bytes an element is stored in: also half ones, and an absmax of four for each 256 or 128, as
#: optimizers of 8 and 4 bits have them.
_STORED: Final = {**_COMPUTED, "1/2": (1, 2), "4/256": (4, 256), "4/128": (4, 128)}
#: Bytes of constants an element has: an absmax of one byte or four for each 64, and a nested one
#: for each 256 of these.
_CONSTANTS: Final = {"1/64": (1, 64), "4/64": (4, 64), "4/(64 x 256)": (4, 64 * 256)}


def _pairs(names: Sequence[str]) -> list[tuple[str, ...]]:
    return [(x, y) for i, x in enumerate(names) for y in names[i:]]


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
        formula, numbers = _counted(count, asked, nbytes, symbols.formula(asked, component))
        found.append(Term(name, nbytes, formula, basis, source, component.value, numbers, count))
    found.sort(key=lambda term: -term.bytes)
    found.sort(key=lambda term: order[Component(term.component)])
    return tuple(found)


def components_of(terms: Iterable[Term]) -> tuple[Term, ...]:
    """The terms of each component as one, in the order of the stack. The formula is that of its
    parts, where these are few; of the largest and how many others there are, where not."""
    parts: dict[str, list[Term]] = {}
    for term in terms:
        parts.setdefault(term.component, []).append(term)
    found = []
    for name, members in parts.items():
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
                members[0].basis,
                members[0].source,
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
        SLACK,
        numbers=f"{nbytes:,}",
    )


_INDEX: Final = re.compile(r"\.\d+(?=\.|$)")


def name_of(allocation: Allocation) -> str:
    """What a buffer is and where it was made; indices of layers and experts become stars."""
    label, module = allocation.label, allocation.module
    if label.component in _NAMED or not module:
        return _INDEX.sub(".*", label.what)
    return f"{_INDEX.sub('.*', label.what)} of {_INDEX.sub('.*', module)}"


def _counted(count: int, asked: int, nbytes: int, found: tuple[str, str] | None) -> tuple[str, str]:
    formula, numbers = found or (f"{asked:,}", f"{asked:,}")
    if nbytes != count * asked:
        formula, numbers = f"r512({formula})", f"{nbytes // count:,}"
    if count == 1:
        return formula, numbers
    return f"{count} x {formula}", f"{count} x {numbers}"


def _plain(term: Term) -> str:
    return f"{term.formula} ({term.name})"
