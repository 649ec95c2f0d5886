"""Which layers of a model need to be built for a recording of all of them: the first, a few that
repeat, the last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.shape.model_shape import Layer, ModelShape

#: Longest pattern that is looked for: Gemma 3 repeats six layers.
_LONGEST_PERIOD: Final = 12


@dataclass(frozen=True)
class Fold:
    """How a row of `total` layers is built from fewer.

    Built layers are numbered from `start` on, for the layers of an encoder come before those of a
    decoder. Those from `template` on, `period` of them, stand for `copies` more periods, which
    come right after them.
    """

    start: int
    built: int
    template: int
    period: int
    copies: int

    @property
    def total(self) -> int:
        """Layers of the whole row."""
        return self.built + self.copies * self.period

    @property
    def added(self) -> int:
        """Layers that are not built."""
        return self.copies * self.period


@dataclass(frozen=True)
class Folded:
    """A shape of which only some layers are left, and how each of its rows was folded."""

    shape: ModelShape
    folds: tuple[Fold, ...]


def fold(shape: ModelShape, margin: int = 1) -> Folded:
    """The shape with as few layers as show the pattern.

    `margin` is how many layers are built besides the first, before those that stand for others,
    and how many after: what happens in them is to be like what happens in those.
    """
    encoder, folds = _fold_row(shape.encoder, 0, margin)
    layers, more = _fold_row(shape.layers, len(encoder), margin)
    if not any(f.copies for f in (*folds, *more)):
        return Folded(shape, (*folds, *more))
    return Folded(replace(shape, encoder=encoder, layers=layers), (*folds, *more))


def _fold_row(
    layers: tuple[Layer, ...], start: int, margin: int
) -> tuple[tuple[Layer, ...], tuple[Fold, ...]]:
    if not layers:
        return layers, ()
    template, period, copies = pattern_of(_kinds(layers), margin)
    row = Fold(start, len(layers) - copies * period, template, period, copies)
    kept = layers[: template + period] + layers[template + period * (1 + copies) :]
    return kept, (row,)


def _kinds(layers: Sequence[Layer]) -> list[int]:
    """A number for each layer, the same for layers that are alike."""
    known: dict[int, int] = {}
    distinct: list[Layer] = []
    kinds = []
    for layer in layers:
        kind = known.get(id(layer))
        if kind is None:
            kind = next((i for i, other in enumerate(distinct) if other == layer), len(distinct))
            if kind == len(distinct):
                distinct.append(layer)
            known[id(layer)] = kind
        kinds.append(kind)
    return kinds


def pattern_of(kinds: Sequence[int], margin: int) -> tuple[int, int, int]:
    """(template, period, copies) that leave the fewest layers to be built."""
    best = (0, 1, 0)
    for period in range(1, min(_LONGEST_PERIOD, len(kinds) - 1) + 1):
        for low, high in _runs(kinds, period):
            # The first layer of all is never like others: its input may need no gradient.
            template = max(low, 1) + margin
            copies = (high - template - margin) // period - 1
            if copies > 0 and copies * period > best[1] * best[2]:
                best = (template, period, copies)
    return best


def _runs(kinds: Sequence[int], period: int) -> list[tuple[int, int]]:
    """Stretches low <= index < high in which what stands at an index stands `period` on too."""
    runs = []
    low = 0
    for index in range(len(kinds)):
        if index + period >= len(kinds) or kinds[index] != kinds[index + period]:
            if index > low:
                runs.append((low, min(index + period, len(kinds))))
            low = index + 1
    return runs
