"""What the bytes at the peak are: terms with a formula, its numbers, how it is known, and a source.

Every buffer alive at the peak belongs to one term, so that terms sum to the peak with nothing left
over. Formulas are found from the sizes of the buffers: a product of the model's and the plan's
sizes that gives their bytes exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from qtui_core.dataclass import dataclass
from qtui_core.memory.formulas.symbols import RESIDENT, Kind, Symbols
from qtui_core.memory.replay.record import Component
from qtui_core.memory.replay.timeline import STACK, Allocation

Basis = Literal["exact", "derived", "calibrated", "assumed"]


@dataclass(frozen=True)
class Term:
    """Bytes with their reason.

    Attributes:
        name: what they are.
        formula: in the symbols of `Symbols`, in bytes.
        basis: "exact" where the bytes follow from the configuration, "derived" where they follow
            from the operations of a step and the rules of autograd and allocator, "calibrated"
            where they were measured, "assumed" where nothing tells how a checkpoint stores them.
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


def terms_at(alive: Iterable[Allocation], symbols: Symbols) -> tuple[Term, ...]:
    """One term for all buffers that are the same thing and have one size, by component and then
    by bytes. They sum to the bytes alive."""
    groups: dict[tuple[Component, str, int, Kind], list[int]] = {}
    for allocation in alive:
        kind = symbols.kind_of(allocation)
        key = (allocation.component, name_of(allocation), allocation.asked, kind)
        group = groups.setdefault(key, [0, 0])
        group[0] += allocation.copies * allocation.bytes
        group[1] += allocation.copies
    order = {component: index for index, component in enumerate(STACK)}
    found = []
    for (component, name, asked, kind), (nbytes, count) in groups.items():
        basis, source = _known_of(component, symbols)
        entry = symbols.formula(asked, component, kind)
        formula, numbers = _counted(count, asked, nbytes, entry)
        found.append(Term(name, nbytes, formula, basis, source, component.value, numbers, count))
    found.sort(key=lambda term: (-term.bytes, term.name))
    found.sort(key=lambda term: order[Component(term.component)])
    return tuple(found)


def _known_of(component: Component, symbols: Symbols) -> tuple[Basis, str]:
    """How the bytes of a component are known, and where from: of weights that a checkpoint packed,
    by their layout."""
    basis, source = _KNOWN[component]
    shape, packing = symbols.shape, symbols.packing
    if shape is None:
        return basis, source
    if packing is not None and component in (Component.WEIGHTS, Component.QUANTIZATION):
        if not shape.told:
            return "assumed", "as if they were unpacked: config.json does not tell"
        source = f"quantization_config of config.json: {packing.title}"
    if component not in (Component.INPUTS, Component.WORKSPACES) and basis == "exact":
        basis = shape.known
    return basis, source.replace("config.json", shape.described_in)


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


__all__ = [
    "RESIDENT",
    "SLACK",
    "Basis",
    "Symbols",
    "Term",
    "components_of",
    "name_of",
    "slack_term",
    "terms_at",
]
