"""The bytes at the peak as terms: each with a formula, its numbers, its basis, and a source.

Every buffer alive at the peak belongs to exactly one term, so the terms sum to the peak. A formula
is the product that gives a buffer's size (size.py) times the number of such buffers: `L*B*S*h*2`,
and `r512(...)` if the allocator rounds the size up to a multiple of 512 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from qtui_core.dataclass import dataclass
from qtui_core.memory.formulas.size import (
    Expression,
    expression_of,
    letters_in,
    number,
    symbol,
    with_numbers,
)
from qtui_core.memory.replay.record import RESIDENT, Component
from qtui_core.memory.replay.timeline import STACK, Allocation
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.shape.packings import STORED

Basis = Literal["exact", "derived", "calibrated", "assumed"]


@dataclass(frozen=True)
class Term:
    """A number of bytes, and its derivation.

    Attributes:
        name: what the bytes are for.
        formula: in the letters of `size.MEANINGS`, in bytes.
        basis: "exact" if the bytes follow from the configuration; "derived" if they follow from the
            operations of a step and the rules of autograd and the allocator; "calibrated" if they
            were measured; "assumed" if it is unknown how a checkpoint stores them.
        source: where the rule or measurement is documented.
        component: the component that a finer term is part of; empty for components.
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

    PRINTED = ("name", "bytes", "formula", "numbers", "basis", "source", "count")


#: Components whose labels are names that say where a buffer is.
_NAMED: Final = RESIDENT | {Component.INPUTS}

SLACK: Final = "unsplit rest of blocks"

#: Component -> (basis, source).
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


class Held(NamedTuple):
    """Buffers for the same thing, of the same size.

    Attributes:
        component, name: what they are.
        size: bytes of one, as requested.
        copies, bytes: how many there are, and what all take, each rounded.
    """

    component: Component
    name: str
    size: int
    copies: int
    bytes: int


class Terms:
    """The terms of some buffers of a model; `quant` is that of its plan (`RunPlan.quant`).

    Attributes:
        held: the buffers, by component and then by bytes.
        letters: in their formulas, with their values.
    """

    def __init__(
        self, alive: Iterable[Allocation], shape: ModelShape | None, quant: str | None
    ) -> None:
        self.held = _held(alive)
        self.letters = letters_in(held.size for held in self.held)
        self._shape = shape
        self._packing = None if shape is None else shape.packing_under(quant)
        self._layers = 0 if shape is None else len(shape.layers)
        if self._layers > 1:
            self.letters["L"] = self._layers

    @property
    def each(self) -> tuple[Term, ...]:
        """A term for each kind of buffer of one size. They sum to the live bytes."""
        return tuple(self._term(held, held.name) for held in self.held)

    @property
    def by_expression(self) -> tuple[Term, ...]:
        """A term for all buffers of a component that have the same size and count, the most bytes
        first."""
        alike: dict[tuple[Component, str, int], list[Held]] = {}
        for held in self.held:
            key = (held.component, expression_of(held.size).text, held.copies)
            alike.setdefault(key, []).append(held)
        found = [
            self._term(group[0], f"{group[0].name}{more}", len(group))
            for group in alike.values()
            for more in (f" and {len(group) - 1} more" if len(group) > 1 else "",)
        ]
        return tuple(sorted(found, key=lambda term: -term.bytes))

    @property
    def components(self) -> tuple[Term, ...]:
        """A term for each component, in the order of the stack. The formula is the sum of its
        products, without those below a thousandth."""
        parts: dict[Component, list[Held]] = {}
        for held in self.held:
            parts.setdefault(held.component, []).append(held)
        return tuple(self._component(name, members) for name, members in parts.items())

    def _term(self, held: Held, name: str, times: int = 1) -> Term:
        """The term of some buffers and the others like them, which have `times` names."""
        expression = expression_of(held.size)
        if held.bytes != held.copies * held.size:
            expression = symbol(f"r512({expression.text})", held.bytes // held.copies)
        expression = expression.times(self._count(held.copies)).times(number(times))
        nbytes, count = times * held.bytes, times * held.copies
        part_of = held.component.value
        return self._made(held.component, name, expression.text, nbytes, count, part_of)

    def _component(self, component: Component, members: Sequence[Held]) -> Term:
        nbytes = sum(held.bytes for held in members)
        whole = number(0)
        for held in members:
            whole = whole.plus(self._count(held.copies).times(expression_of(held.size)))
        listed = whole.nearly(nbytes, nbytes // 1000)
        formula, left = listed.text, int(nbytes - listed.value)
        if left:
            formula += f" {'+' if left > 0 else '-'} {abs(left):,} in smaller terms"
        count = sum(held.copies for held in members)
        return self._made(component, component.value, formula, nbytes, count)

    def _made(
        self, of: Component, name: str, formula: str, nbytes: int, count: int, part_of: str = ""
    ) -> Term:
        basis, source = self._known_of(of)
        numbers = with_numbers(formula, self.letters)
        return Term(name, nbytes, formula, basis, source, part_of, numbers, count)

    def _count(self, count: int) -> Expression:
        """The count of buffers, as a formula in the number of layers if possible."""
        layers = self._layers
        if layers > 1 and count % layers == 0:
            return symbol("L", layers).times(number(count // layers))
        return symbol("(L - 1)", count) if layers > 2 and count == layers - 1 else number(count)

    def _known_of(self, component: Component) -> tuple[Basis, str]:
        """The basis and source of a component; of weights that a checkpoint packed, from their
        layout."""
        basis, source = _KNOWN[component]
        shape, packing = self._shape, self._packing
        if shape is None:
            return basis, source
        if packing is not None and component in (Component.WEIGHTS, Component.QUANTIZATION):
            if not shape.storage_known:
                return "assumed", "as if they were unpacked: config.json does not say"
            source = f"quantization_config of config.json: {packing.title}"
            if packing.quant == STORED and not packing.held:
                basis, source = "derived", f"{source}, without the headers of its files"
        if component not in (Component.INPUTS, Component.WORKSPACES) and basis == "exact":
            basis = shape.known
        return basis, source.replace("config.json", shape.described_in)


def _held(alive: Iterable[Allocation]) -> tuple[Held, ...]:
    groups: dict[tuple[Component, str, int], list[Allocation]] = {}
    for allocation in alive:
        key = (allocation.component, name_of(allocation), allocation.asked)
        groups.setdefault(key, []).append(allocation)
    found = [
        Held(
            component,
            name,
            group[0].asked,
            sum(each.copies for each in group),
            sum(each.copies * each.bytes for each in group),
        )
        for (component, name, _), group in groups.items()
    ]
    order = {component: index for index, component in enumerate(STACK)}
    return tuple(sorted(found, key=lambda held: (order[held.component], -held.bytes, held.name)))


def slack_term(allocated: int, alive: int) -> Term:
    """The term for the bytes of blocks beyond the requested sizes."""
    return Term(
        SLACK,
        allocated - alive,
        "allocated - alive: blocks of more than 1 MiB are cut only where more than 1 MiB is left",
        "derived",
        "should_split in c10/cuda/CUDACachingAllocator.cpp",
        SLACK,
        numbers=f"{allocated:,} - {alive:,}",
    )


_INDEX: Final = re.compile(r"\.\d+(?=\.|$)")


def name_of(allocation: Allocation) -> str:
    """What a buffer is and where it was made; numbers of layers and experts become stars."""
    label, module = allocation.label, allocation.module
    if label.component in _NAMED or not module:
        return _INDEX.sub(".*", label.what)
    return f"{_INDEX.sub('.*', label.what)} of {_INDEX.sub('.*', module)}"
