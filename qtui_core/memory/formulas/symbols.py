"""The sizes of a model and a plan by the letters that formulas use, and bytes as products of them.

A buffer's bytes are often several products at once: for 2,048 tokens of a model 4,096 wide, 4 N h
is as many as 2 h h. What the buffer is decides between them, so that a formula still holds when
the batch, the sequence or the rank is another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Final, Literal

from qtui_core.memory.plan.run_plan import RunPlan, chunk_of
from qtui_core.memory.replay.record import Component, Phase
from qtui_core.memory.replay.timeline import Allocation
from qtui_core.memory.shape.model_shape import Attention, Linear, Mlp, ModelShape
from qtui_core.memory.shape.modules import modules_of_layer
from qtui_core.memory.shape.packings import STORED

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
#: What has the shapes of trained parameters.
_TRAINED: Final = frozenset((Component.ADAPTERS, Component.OPTIMIZER, Component.GRADIENTS))
#: What has the shapes of parameters.
STANDING: Final = RESIDENT | {Component.GRADIENTS}

#: What a buffer is as large as: tokens of a width; a weight, an adapter's; scores of each head,
#: masks or biases of them, pairs of positions; cosines and sines, positions.
Kind = Literal[
    "flow",
    "weight",
    "adapter",
    "scores",
    "masks",
    "biases",
    "pairs",
    "rotations",
    "positions",
    "scales",
    "zeros",
    "indices",
]

#: Bytes -> (factor, names of the sizes) of a product that gives them.
Products = dict[int, tuple[str, tuple[str, ...]]]

#: The operation that makes a copy of another type.
_CAST: Final = "_to_copy"
#: Operations outside of modules -> what they make, whatever the attention; where its scores are
#: tensors; and where it has biases of positions (T5).
_MADE: Final[Mapping[str, Kind]] = {
    "_softmax": "scores",
    "baddbmm": "scores",
    "bmm": "scores",
    "where": "masks",
    "le": "masks",
    "ge": "masks",
    "buckets": "pairs",
}
_MADE_SCORED: Final[Mapping[str, Kind]] = {
    "native_dropout": "scores",
    "native_dropout mask": "scores",
    _CAST: "scores",
}
_MADE_BIASED: Final[Mapping[str, Kind]] = {"zeros": "biases", "clone": "biases", _CAST: "biases"}
#: What stands beside the codes of a checkpoint, by the last part of its name.
_BESIDE_CODES: Final[Mapping[str, Kind]] = {
    "qzeros": "zeros",
    "weight_zero_point": "zeros",
    "zero": "zeros",
    "g_idx": "indices",
}
#: Operations that make cosines and sines.
_ROTATING: Final = frozenset(("mul", "cos", "sin", "cat", _CAST))
#: The operation that makes the positions themselves.
_COUNTING: Final = "arange"
#: Modules that are looked up by pairs of positions, and by positions.
_LOOKED_UP: Final[Mapping[str, Kind]] = {
    "relative_attention_bias": "biases",
    "wpe": "positions",
    "position_embeddings": "positions",
    "embed_positions": "positions",
}

#: Bytes of an element that flows; of a number for each token, head or rank, which no mask has and
#: few are integers of 8 bytes.
_COMPUTED: Final = {"2": (2, 1), "4": (4, 1), "1": (1, 1)}
_NUMBERS: Final = {"2": (2, 1), "4": (4, 1)}
_LONG: Final = {"8": (8, 1), **_COMPUTED}
#: Bytes an element of a weight is stored in.
_WHOLE: Final = {**_COMPUTED, "8": (8, 1), "1/2": (1, 2)}
#: Bytes an element is stored in: also half ones, and an absmax of four for each 256 or 128, as
#: optimizers of 8 and 4 bits have them.
_STORED: Final = {**_WHOLE, "4/256": (4, 256), "4/128": (4, 128)}
#: Bytes of constants an element has: an absmax of four bytes for each 64; or of one, and a nested
#: one of four for each 256 of these.
_CONSTANTS: Final = {"4/64": (4, 64)}
_NESTED: Final = {"1/64": (1, 64), "4/(64 x 256)": (4, 64 * 256)}


class Symbols:
    """The sizes of a model and a plan by the letters that formulas use; those of the plan alone
    where the shape is not known."""

    def __init__(self, shape: ModelShape | None, plan: RunPlan) -> None:
        self.shape = shape
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
        if shape is not None and shape.rotary_dims:
            values["D"] = shape.rotary_dims
            means["D"] = "rotated elements of a head"
        if plan.adapts:
            values["r"] = plan.lora_rank
            means["r"] = "rank of adapters"
        self.values = values
        self.means = means
        self._shape, self._plan = shape, plan
        # Bytes of an element of what is quantized, which is nearly all there is.
        self._packed = "" if not plan.quantized else "1" if plan.quant == "int8" else "1/2"
        self.packing = None if shape is None or not plan.quantized else shape.packing
        self._made = dict(_MADE)
        if layer is not None and isinstance(layer.attention, Attention):
            attention = layer.attention
            if plan.attention == "eager" or attention.eager or attention.positions == "alibi":
                self._made |= _MADE_SCORED
            if attention.positions == "relative":
                self._made |= _MADE_BIASED

    def kind_of(self, allocation: Allocation) -> Kind:
        """What a buffer is as large as, by the operation that made it."""
        what, module, nbytes = allocation.label.what, allocation.module, allocation.asked
        if allocation.component is Component.QUANTIZATION:
            return _BESIDE_CODES.get(what.rpartition(".")[2], "scales")
        if allocation.born == Phase.OPTIMIZER:
            return "adapter" if self._plan.adapts else "weight"
        if what == _CAST:
            cast = self._cast_weights.get(module.rpartition(".")[2], {}).get(nbytes)
            if cast is not None:
                return cast
        if module:
            return _LOOKED_UP.get(module.rpartition(".")[2], "flow")
        if allocation.operation == _COUNTING:
            return "positions"
        if what in _ROTATING and nbytes in self._tables["rotations"]:
            return "rotations"
        return self._made.get(what, "flow")

    def formula(
        self, nbytes: int, component: Component, kind: Kind = "flow"
    ) -> tuple[str, str] | None:
        """(formula, the same with numbers) of a buffer's bytes; None where no product fits. What
        stands still is of the model's sizes, what flows of the tokens'. Of sizes that are equal
        the first is written."""
        if component in STANDING:
            tables = [self._trained if component in _TRAINED else self._stored]
            if component is Component.QUANTIZATION and self._plan.quant == STORED:
                tables = [self._of_groups.get(kind, self._of_groups["scales"])]
            elif component is Component.QUANTIZATION:
                tables = [self._constants]
        else:
            tables = [self._tables[name] for name in (kind, "flow", "scores", "masks", "weight")]
        entry = next((table[nbytes] for table in tables if nbytes in table), None)
        if entry is None:
            return None
        factor, names = entry
        numbers = " x ".join(f"{self.values[name]:,}" for name in names)
        return f"{factor} {' '.join(names)}", f"{factor} x {numbers}"

    @cached_property
    def _cast_weights(self) -> dict[str, dict[int, Kind]]:
        """Last name of a linear layer -> bytes of what its weight, or an adapter's on it, is cast
        to under autocast; under no name, of what a chunked loss makes of the head."""
        found: dict[str, dict[int, Kind]] = {}
        shape, plan = self._shape, self._plan
        if shape is None:
            return found
        head = shape.head
        if head is not None and chunk_of(plan.loss) is not None:
            size = head.inputs * head.outputs
            found[""] = {2 * size: "weight", 4 * size: "weight"}
        if not plan.autocast:
            return found
        modules = [*shape.embedding_modules, *shape.head_modules]
        # Most layers are one and the same object.
        for layer in {id(layer): layer for layer in (*shape.encoder, *shape.layers)}.values():
            modules += modules_of_layer(layer)
        if head is not None:
            modules.append(head)
        for module in modules:
            if not isinstance(module, Linear):
                continue
            kinds = found.setdefault(module.name.rpartition(".")[2], {})
            kinds[2 * module.inputs * module.outputs] = "weight"
            if plan.adapts:
                for size in (module.inputs, module.outputs):
                    kinds.setdefault(2 * plan.lora_rank * size, "adapter")
        return found

    @cached_property
    def _constants(self) -> Products:
        """Of the constants of a quantized matrix, which is as wide as the model on one side; of
        int8, of its rows."""
        quant = self._plan.quant or ""
        if quant == "int8":
            return self._table(([(name,) for name in self._of_weights], {"4": (4, 1)}))
        matrices = self._known(*(("h", name) for name in self._of_weights))
        return self._table((matrices, _CONSTANTS if quant in ("nf4", "fp4") else _NESTED))

    @cached_property
    def _of_groups(self) -> Mapping[str, Products]:
        """Of what a checkpoint stores beside its codes: scales and zero points of groups of a row
        or of tiles, and the indices of groups."""
        layout = None if self.packing is None else self.packing.layout
        singles = ([(name,) for name in self._of_weights], _LONG)
        per = () if layout is None else (layout.group,) if layout.group else layout.block
        if layout is None or not all(per) or not per:
            indices = self._table((singles[0], {"4": (4, 1)}))
            return {"scales": self._table(singles), "indices": indices}
        matrices = self._known(*(("h", name) for name in self._of_weights))
        text, under = " x ".join(map(str, per)), prod(per)
        divided = f"({text})" if len(per) > 1 else text
        scales = {f"{size}/{divided}": (size, under) for size in (2, 4, 1)}
        zeros = {f"{layout.bits}/(8 x {text})": (layout.bits, 8 * under)}
        return {
            "scales": self._table((matrices, scales), singles),
            "zeros": self._table((matrices, zeros | scales)),
            "indices": self._table((singles[0], {"4": (4, 1)})),
        }

    @cached_property
    def _stored(self) -> Products:
        """Of weights, in which no rank of an adapter is."""
        factors = {self._packed: _WHOLE[self._packed], **_WHOLE} if self._packed else _WHOLE
        sizes = self._of_weights
        return self._table(([(name,) for name in sizes], factors), (_pairs(sizes), factors))

    @cached_property
    def _trained(self) -> Products:
        """Of what is trained, its gradients and states."""
        sizes = self._sizes
        ranked = [(name, "r") for name in self._of_weights] if "r" in sizes else []
        single = [(name,) for name in sizes]
        return self._table((ranked, _STORED), (single, _STORED), (_pairs(sizes), _STORED))

    @cached_property
    def _tables(self) -> Mapping[Kind, Products]:
        """What each kind of buffer that does not stand still can be."""
        widths = self._known(("N", "h"), ("N", "I"), ("N", "a"), ("N", "k"))
        numbers = self._known(("N", "V"), ("N", "r"), ("N", "H"))
        sizes = self._of_weights
        weights = [*_pairs(sizes), *((name,) for name in sizes)]
        return {
            "flow": self._table(
                ([("N",)], _LONG), ([*widths, *numbers], _NUMBERS), (widths, _COMPUTED)
            ),
            "weight": self._table((weights, _NUMBERS)),
            "adapter": self._table((self._known(*((name, "r") for name in sizes)), _NUMBERS)),
            "scores": self._table((self._known(("N", "H", "S")), _COMPUTED)),
            "masks": self._table(([("N", "S")], _COMPUTED), ([("S",)], _LONG)),
            "biases": self._table((self._known(("H", "S", "S")), _NUMBERS)),
            "pairs": self._table(([("S", "S")], _LONG)),
            "rotations": self._table((self._known(("S", "D")), _NUMBERS)),
            "positions": self._table((self._known(("S", "h")), _NUMBERS), ([("S",)], _LONG)),
        }

    def _known(self, *products: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The products of sizes that the model has."""
        return [names for names in products if all(name in self.values for name in names)]

    @property
    def _sizes(self) -> list[str]:
        return [name for name in self.values if name not in ("N", "S", "H", "D")]

    @property
    def _of_weights(self) -> list[str]:
        return [name for name in self._sizes if name != "r"]

    def _table(
        self, *groups: tuple[Iterable[tuple[str, ...]], Mapping[str, tuple[int, int]]]
    ) -> Products:
        """The products of each group with its factors, those that come first where several give
        the same bytes."""
        found: Products = {}
        for products, factors in groups:
            sizes = [(names, prod(self.values[name] for name in names)) for names in products]
            # The usual bytes of an element first: 2 N I is meant where 8 N h is as many.
            for text, (over, under) in factors.items():
                for names, size in sizes:
                    found.setdefault(-(-over * size // under), (text, names))
        return found


def _pairs(names: Sequence[str]) -> list[tuple[str, ...]]:
    return [(x, y) for i, x in enumerate(names) for y in names[i:]]
