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
    MergedRows,
    WholeRows,
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
    MergeWay,
)
from qtui_core.inspection.inspect import is_quantizable
from qtui_core.models import ModelSource, TensorInfo
from qtui_core.models.opening_adapter import open_adapter
from qtui_core.models.quoting import listed
from qtui_core.quant.elements import Float32
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
        found = weight.values()
        if self._before is not None:
            found = round_stored(self._before.values(weight), weight.info.dtype)
        merged = self._merge.weights.get(weight.info.name) if self._adds else None
        if merged is not None:
            rows = WholeRows(found.reshape(weight.rows.shape))
            found = MergedRows(merged, rows, rounded=self._rounded).rows(0, rows.shape[0])
        if self._after is not None:
            rows = WholeRows(found.reshape(weight.rows.shape))
            found = self._after.values(StoredWeight(weight.info, rows))
            found = round_stored(found, weight.info.dtype)
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
    found = open_adapter(settings.adapter)
    stack.enter_context(found.weights)
    merge = merge_adapter(source, read_adapter(found))
    on = settings.trained_on

    def rounds(scheme: Scheme) -> QuantizedWeights:
        def scheme_of(info: TensorInfo) -> Scheme | None:
            return scheme if is_quantizable(info) and is_quantized(info) else None

        return QuantizedWeights(str(scheme), source, scheme_of)

    def base() -> QuantizedWeights | None:
        return None if on is None else rounds(on)

    ways = [
        AdaptedWeights(TRAINED, merge, before=base()),
        AdaptedWeights(BASE, merge, before=base(), adds=False),
    ]
    for scheme in settings.schemes:
        name = f"{MERGED} {MergeWay(str(scheme)).name}"
        ways.append(AdaptedWeights(name, merge, after=rounds(scheme), rounded=True))
    for scheme in settings.schemes if on is not None else ():
        name = f"{MERGED} {MergeWay(str(scheme), str(on)).name}"
        ways.append(AdaptedWeights(name, merge, before=base(), after=rounds(scheme)))
    ways += [
        AdaptedWeights(f"{APART} {scheme}", merge, before=rounds(scheme))
        for scheme in settings.schemes
    ]
    return ways


def refuse_parts(ways: list[AdaptedWeights], whole: Collection[str]) -> None:
    """Raises ModelError if the model that runs lacks a weight that the adapter changes: its own
    weights are `whole`."""
    lost = [name for name in ways[0].changed if name not in whole]
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
    base, found = None, []
    for row in rows:
        kind, _, name = row.name.partition(" ")
        if kind == BASE:
            base = row.kl_mean
        elif kind != TRAINED:
            beside = f"{APART} {name.partition(ONTO)[0]}"
            over = compared.get((row.name, beside)) if kind == MERGED else None
            found.append(
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
    return MergedDivergence(base, tuple(found), words)
