"""Finds which weight of one model is which weight of another."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError, UsageError
from qtui_core.models import ModelSource, TensorInfo
from qtui_core.models.quoting import listed, quoted
from qtui_core.packed import LogicalWeight, logical_weights, open_weight
from qtui_core.packed.gguf_names import (
    GgufPlace,
    KeptWhole,
    doubt,
    find_in_gguf,
    is_gguf,
    is_transposed,
    restore,
)
from qtui_core.quant.elements import RowSource

#: Wrappers around a model that some tools include in names and others do not.
_WRAPPERS = re.compile(
    r"^(base_model\.model\.|model\.language_model\.|language_model\.model\.|language_model\.|"
    r"module\.|_orig_mod\.|transformer\.|model\.)+"
)

Weights = Mapping[str, LogicalWeight]


@dataclass(frozen=True)
class Pair:
    """One weight in both models.

    Attributes:
        name: its Hugging Face name, if one of the models has it; else its name in both.
        a, b: how each model stores it.
        place: where the GGUF model stores it, if exactly one of the two is GGUF.
        gguf_is_a: whether the GGUF model is a.
    """

    name: str
    a: LogicalWeight
    b: LogicalWeight
    place: GgufPlace | None = None
    gguf_is_a: bool = False

    @property
    def info(self) -> TensorInfo:
        """The weight as a tensor, in the shape of the model that is not GGUF."""
        return (self.b if self.gguf_is_a else self.a).info


@dataclass(frozen=True)
class Pairing:
    """The weights of two models, matched, in the order of a. `only_a` and `only_b` are names
    without a partner, `shapes` weights of two shapes: (name, shape in a, shape in b)."""

    pairs: tuple[Pair, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    shapes: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    notes: tuple[str, ...] = ()


def pair_weights(a: ModelSource, b: ModelSource, pattern: str | None = None) -> Pairing:
    """Pairs the weights of both models by name: equal names, a GGUF file's name for a weight, or
    names that differ only in a wrapper around the model (`model.layers…` and `layers…`).

    Args:
        pattern: shell pattern that chooses weights by their name in either model.

    Raises:
        ModelError: nothing matches.
        UsageError: nothing matches `pattern`, or the gguf library is missing.
    """
    mine, theirs = logical_weights(a), logical_weights(b)
    matched, notes = _find_pairs(a, b, mine, theirs)
    if not matched:
        raise ModelError(
            f"{quoted(a.id)} and {quoted(b.id)} have no tensor in common: the first has "
            f"{listed(list(mine))}, the second {listed(list(theirs))}. Give two checkpoints of "
            f"one model."
        )
    chosen = [p for p in matched if _matches(pattern, p.name, p.a.name, p.b.name)]
    if not chosen:
        raise UsageError(
            f"No tensor that both models have matches {pattern!r}. Names look like "
            f"{matched[len(matched) // 2].name!r}; `*` matches any characters."
        )
    used_a, used_b = {p.a.name for p in matched}, {p.b.name for p in matched}
    # Checked once for each pair: checkpoints with experts have tens of thousands of weights.
    fits = [(pair, _fits(pair, a if pair.gguf_is_a else b)) for pair in chosen]
    return Pairing(
        pairs=tuple(pair for pair, fit in fits if fit),
        only_a=tuple(n for n in mine if n not in used_a and _matches(pattern, n)),
        only_b=tuple(n for n in theirs if n not in used_b and _matches(pattern, n)),
        shapes=tuple((p.name, p.a.shape, p.b.shape) for p, fit in fits if not fit),
        notes=notes,
    )


def open_pair(a: ModelSource, b: ModelSource, pair: Pair) -> tuple[RowSource, RowSource]:
    """Rows of a pair in both models, in the same shape and order. Raises what `open_weight`
    raises."""
    rows_a: RowSource = open_weight(a, pair.a)
    rows_b: RowSource = open_weight(b, pair.b)
    if pair.place is not None and pair.gguf_is_a:
        rows_a = restore(rows_a, pair.name, pair.place, a, rows_b.shape[0])
    elif pair.place is not None:
        rows_b = restore(rows_b, pair.name, pair.place, b, rows_a.shape[0])
    if rows_a.shape != rows_b.shape:
        rows_b = KeptWhole(rows_b, rows_a.shape, lambda rows: rows.reshape(rows_a.shape))
    return rows_a, rows_b


def _find_pairs(
    a: ModelSource, b: ModelSource, mine: Weights, theirs: Weights
) -> tuple[list[Pair], tuple[str, ...]]:
    if is_gguf(a) == is_gguf(b):
        return _pairs_by_name(mine, theirs), ()
    gguf_is_a = is_gguf(a)
    gguf, plain = (a, theirs) if gguf_is_a else (b, mine)
    places = find_in_gguf(plain, gguf)
    if gguf_is_a:
        pairs = [Pair(n, mine[p.tensor], theirs[n], p, gguf_is_a) for n, p in places.items()]
        order = {name: i for i, name in enumerate(mine)}
        pairs.sort(key=lambda pair: order[pair.a.name])
    else:
        pairs = [Pair(n, mine[n], theirs[p.tensor], p) for n, p in places.items()]
    warning = doubt(gguf) if pairs else None
    return pairs, (warning,) if warning else ()


def _pairs_by_name(mine: Weights, theirs: Weights) -> list[Pair]:
    partners = {name: name for name in mine if name in theirs}
    left, cores = (_by_core(n for n in names if n not in partners) for names in (theirs, mine))
    for core, names in cores.items():
        if len(names) == len(left.get(core, ())) == 1:
            partners[names[0]] = left[core][0]
    return [Pair(n, mine[n], theirs[partners[n]]) for n in mine if n in partners]


def _by_core(names: Iterable[str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for name in names:
        grouped.setdefault(core_name(name), []).append(name)
    return grouped


def core_name(name: str) -> str:
    """The name of a weight or module without the wrappers around its model."""
    return _WRAPPERS.sub("", name)


def _fits(pair: Pair, gguf: ModelSource) -> bool:
    """Whether both sides have the same shape once the GGUF side is turned back. Dimensions of size
    one do not count."""
    plain, stored = (pair.b, pair.a) if pair.gguf_is_a else (pair.a, pair.b)
    shape = stored.shape
    if pair.place is not None:
        if pair.place.expert is not None:
            return len(shape) == 3 and shape[1:] == plain.shape and pair.place.expert < shape[0]
        if is_transposed(pair.name, gguf):
            shape = shape[::-1]
    return [n for n in plain.shape if n != 1] == [n for n in shape if n != 1]


def _matches(pattern: str | None, *names: str) -> bool:
    return pattern is None or any(fnmatchcase(n, pattern) for n in names)
