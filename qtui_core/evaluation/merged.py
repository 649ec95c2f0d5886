"""The models that an adapter makes: as it was trained, merged and quantized, and kept apart from a
quantized base. Needs numpy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from qtui_core.evaluation.changes import QuantizedWeights, StoredWeight, WeightChange
from qtui_core.evaluation.conclude import beyond_chance
from qtui_core.evaluation.results import EvaluationBegun, PartScored
from qtui_core.evaluation.settings import EvaluationSettings
from qtui_core.evaluation.summary import compare_candidates
from qtui_core.inspection.adapters.merging import (
    Merge,
    is_quantized,
    merge_adapter,
    round_stored,
)
from qtui_core.inspection.adapters.reading import read_adapter
from qtui_core.inspection.adapters.survival import (
    APART,
    BASE,
    MERGED,
    ONTO,
    TRAINED,
    DivergenceRow,
    MergedDivergence,
    UpdateSurvival,
)
from qtui_core.inspection.inspect import is_quantizable
from qtui_core.models import ModelSource, TensorInfo
from qtui_core.models.opening import open_adapter
from qtui_core.quant.elements import ArrayRows, Float32
from qtui_core.quantities import plural
from qtui_core.schemes.scheme import Scheme


class AdaptedWeights(WeightChange):
    """A base with the update of an adapter. What is quantized, before the update is added or after
    it, is rounded to the stored dtype of the base, as bitsandbytes dequantizes to it."""

    def __init__(
        self,
        name: str,
        merge: Merge,
        before: QuantizedWeights | None = None,
        after: QuantizedWeights | None = None,
        *,
        rounded: bool = False,
        adds: bool = True,
    ) -> None:
        """`before` and `after`: how the base, and the sum, are quantized. `rounded`: whether the
        sum is rounded to the stored dtype. `adds`: whether there is an update at all."""
        super().__init__(name, merge.base, merge.weights.keys())
        self._merge, self._before, self._after = merge, before, after
        self._rounded, self._adds = rounded, adds

    def values(self, weight: StoredWeight) -> Float32:
        values, dtype, shape = weight.values(), weight.info.dtype, weight.rows.shape
        if self._before is not None:
            values = round_stored(self._before.values(weight), dtype)
        merged = self._merge.weights.get(weight.info.name) if self._adds else None
        if merged is not None:
            values = merged.merging([(0, shape[0])])(values.reshape(shape), self._rounded)
        if self._after is not None:
            whole = StoredWeight(weight.info, ArrayRows(values.reshape(shape)))
            values = round_stored(self._after.values(whole), dtype)
        return values.reshape(weight.info.shape)

    def nbytes(self) -> int:
        if self._after is not None:
            return self._after.nbytes()
        base = self.source.nbytes if self._before is None else self._before.nbytes()
        return base + (self._merge.adapter.source.nbytes if self._adds else 0)


def adapted(
    source: ModelSource, settings: EvaluationSettings, stack: ExitStack
) -> list[AdaptedWeights]:
    """The model as the adapter was trained, first; the base without it; for each scheme the merged
    model, in both orders if the base was quantized in training; and the quantized base with the
    adapter apart. Embeddings and heads stay as stored in all of them. `stack` closes the adapter.

    Raises what reading and merging the adapter raise.
    """
    assert settings.adapter is not None
    opened = open_adapter(settings.adapter)
    stack.enter_context(opened.weights)
    merge = merge_adapter(source, read_adapter(opened))
    on, schemes = settings.trained_on, settings.schemes

    def rounds(scheme: Scheme | None) -> QuantizedWeights | None:
        def scheme_of(info: TensorInfo) -> Scheme | None:
            return scheme if is_quantizable(info) and is_quantized(info) else None

        return None if scheme is None else QuantizedWeights(str(scheme), source, scheme_of)

    def merged(scheme: Scheme, onto: Scheme | None) -> AdaptedWeights:
        name = UpdateSurvival(str(scheme), str(onto or "")).name
        both = rounds(onto), rounds(scheme)
        return AdaptedWeights(f"{MERGED} {name}", merge, *both, rounded=onto is None)

    return [
        AdaptedWeights(TRAINED, merge, rounds(on)),
        AdaptedWeights(BASE, merge, rounds(on), adds=False),
        *(merged(scheme, None) for scheme in schemes),
        *(merged(scheme, on) for scheme in schemes if on is not None),
        *(AdaptedWeights(f"{APART} {scheme}", merge, rounds(scheme)) for scheme in schemes),
    ]


def merged_divergence(
    begun: EvaluationBegun, parts: Sequence[PartScored]
) -> MergedDivergence | None:
    """The divergences of an evaluation of `adapted` models, on the windows that all of them have
    read; None if there is no such window."""
    windows, rows, compared = compare_candidates(begun, parts)
    if len(rows) < len(begun.candidates):
        return None
    base, divergences = None, []
    for row in rows:
        kind, _, name = row.name.partition(" ")
        if kind == BASE:
            base = row.kl_mean
        elif kind != TRAINED:
            beside = row.name, f"{APART} {name.partition(ONTO)[0]}"
            over = compared.get(beside) if kind == MERGED else None
            difference = None if over is None else over.difference
            decided = over is not None and over.errors >= beyond_chance(windows)
            figures = row.kl_mean, row.kl_stderr, row.bits_per_parameter, row.nbytes
            divergences.append(DivergenceRow(name, kind, *figures, difference, decided))
    text = begun.text
    part = f"{windows:,} of " * (windows < text.windows) + plural(text.windows, "window")
    words = (
        f"{windows * text.scored:,} tokens of {text.origin} in {part} of {text.window:,}; "
        f"embeddings and heads are not quantized. ± is the standard error, over windows."
    )
    return MergedDivergence(base, tuple(divergences), words)
