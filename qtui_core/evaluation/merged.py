"""The models that an adapter makes: as it was trained, merged and quantized, and kept apart from a
quantized base. Needs numpy."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack

from qtui_core.errors import ModelError
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
from qtui_core.inspection.adapters.report import (
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
from qtui_core.models.opening_adapter import open_adapter
from qtui_core.models.quoting import listed
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
        *,
        before: QuantizedWeights | None = None,
        after: QuantizedWeights | None = None,
        rounded: bool = False,
        adds: bool = True,
    ) -> None:
        """`before` and `after`: how the base, and the sum, are quantized. `rounded`: whether the
        sum is rounded to the stored dtype. `adds`: whether there is an update at all."""
        super().__init__(name, merge.base)
        self._merge = merge
        self._before, self._after = before, after
        self._rounded, self._adds = rounded, adds

    @property
    def changed(self) -> Collection[str]:
        """Names of the weights that the adapter changes."""
        return self._merge.weights.keys()

    def values(self, weight: StoredWeight) -> Float32:
        found, dtype, shape = weight.values(), weight.info.dtype, weight.rows.shape
        if self._before is not None:
            found = round_stored(self._before.values(weight), dtype)
        merged = self._merge.weights.get(weight.info.name) if self._adds else None
        if merged is not None:
            found = merged.merging([(0, shape[0])])(found.reshape(shape), self._rounded)
        if self._after is not None:
            rows = ArrayRows(found.reshape(shape))
            found = round_stored(self._after.values(StoredWeight(weight.info, rows)), dtype)
        return found.reshape(weight.info.shape)

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
    on = settings.trained_on

    def rounds(scheme: Scheme | None) -> QuantizedWeights | None:
        def scheme_of(info: TensorInfo) -> Scheme | None:
            return scheme if is_quantizable(info) and is_quantized(info) else None

        return None if scheme is None else QuantizedWeights(str(scheme), source, scheme_of)

    ways = [
        AdaptedWeights(TRAINED, merge, before=rounds(on)),
        AdaptedWeights(BASE, merge, before=rounds(on), adds=False),
    ]
    for onto in (None,) if on is None else (None, on):
        for scheme in settings.schemes:
            way = UpdateSurvival(str(scheme), "" if onto is None else str(onto))
            before, after = rounds(onto), rounds(scheme)
            name, rounded = f"{MERGED} {way.name}", onto is None
            ways.append(AdaptedWeights(name, merge, before=before, after=after, rounded=rounded))
    for scheme in settings.schemes:
        ways.append(AdaptedWeights(f"{APART} {scheme}", merge, before=rounds(scheme)))
    return ways


def refuse_parts(changes: Sequence[AdaptedWeights], whole: Collection[str]) -> None:
    """Raises ModelError if the adapter changes a weight that is not a tensor of its own in the
    running model. `whole` are the names of those that are."""
    lost = [name for name in changes[0].changed if name not in whole]
    if lost:
        raise ModelError(
            f"The model that runs does not have {listed(lost)} as tensors of their own, so the "
            f"adapter cannot be merged into it: leave out --text."
        )


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
            beside = f"{APART} {name.partition(ONTO)[0]}"
            over = compared.get((row.name, beside)) if kind == MERGED else None
            divergences.append(
                DivergenceRow(
                    name,
                    kind,
                    row.kl_mean,
                    row.kl_stderr,
                    row.bits_per_parameter,
                    row.nbytes,
                    None if over is None else over.difference,
                    over is not None and over.errors >= beyond_chance(windows),
                )
            )
    text = begun.text
    count = plural(windows, "window")
    if windows < text.windows:
        count = f"the {windows:,} of {plural(text.windows, 'window')} that all models read, each"
    words = (
        f"{windows * text.scored:,} tokens of {text.origin} in {count} of "
        f"{text.window:,}; embeddings and heads are not quantized. ± is the standard error, over "
        f"windows."
    )
    return MergedDivergence(base, tuple(divergences), words)
