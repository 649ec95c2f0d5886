"""Which layers of a model must be built to record all of them: the first, one period of a repeating
pattern with its neighbours, the last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.shape.model_shape import Layer, ModelShape

#: The longest pattern that is looked for; Gemma 3 repeats six layers.
_LONGEST_PERIOD: Final = 12


@dataclass(frozen=True)
class Fold:
    """How a row of layers is represented by fewer, `built` of them.

    The layers that are built have numbers from `start` on (those of an encoder precede those of a
    decoder). The `period` layers from `template` on stand for `copies` further periods, which
    follow directly after them.
    """

    start: int
    built: int
    template: int
    period: int
    copies: int

    @property
    def added(self) -> int:
        """Layers that are not built."""
        return self.copies * self.period


@dataclass(frozen=True)
class Folded:
    """A shape with only some layers left, and how each row of layers was folded."""

    shape: ModelShape
    folds: tuple[Fold, ...]


def fold(shape: ModelShape, margin: int = 1) -> Folded:
    """The shape with as few layers as show the pattern.

    `margin` is how many layers are built before and after those that stand for others, besides the
    first. They must allocate like those that are left out.
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
    """A number for each layer, the same for equal layers."""
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
    """(template, period, copies) that leaves the fewest layers to build."""
    best = (0, 1, 0)
    for period in range(1, min(_LONGEST_PERIOD, len(kinds) - 1) + 1):
        for low, high in _runs(kinds, period):
            # The first layer never repeats: its input may need no gradient.
            template = max(low, 1) + margin
            copies = (high - template - margin) // period - 1
            if copies > 0 and copies * period > best[1] * best[2]:
                best = (template, period, copies)
    return best


def _runs(kinds: Sequence[int], period: int) -> list[tuple[int, int]]:
    """Ranges low <= index < high that repeat with `period`: each kind equals the kind `period`
    places later."""
    runs = []
    low = 0
    for index in range(len(kinds)):
        if index + period >= len(kinds) or kinds[index] != kinds[index + period]:
            if index > low:
                runs.append((low, min(index + period, len(kinds))))
            low = index + 1
    return runs
