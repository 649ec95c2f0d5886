"""How much of an adapter's update survives merging and quantizing: what is measured, as data, and
its sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from functools import reduce
from operator import add

import numpy as np

from qtui_core.codec import printed
from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.inspection.adapters.merging import Merge, MergedWeight, is_quantized, round_stored
from qtui_core.inspection.census import take_census
from qtui_core.inspection.comparison.difference import sums
from qtui_core.inspection.inspect import refuse_model_scale
from qtui_core.inspection.report import Census
from qtui_core.inspection.sample import limit_of, read_strips, sample_rows
from qtui_core.inspection.sentences import describe_sample, not_finite, recommended
from qtui_core.job import IDLE, Job
from qtui_core.models.files.arrays import RowReader
from qtui_core.models.quoting import quoted
from qtui_core.quant import Scheme, bits_per_parameter, quantize
from qtui_core.quantities import plural

#: The models that are compared on a text: as the adapter was trained, the base without it, merged,
#: and with the adapter kept apart from a quantized base.
TRAINED, BASE, MERGED, APART = "trained", "base", "merged", "apart"
#: Between the two schemes of a way's name.
ONTO = " onto "


def ratio(one: float, other: float) -> float | None:
    """The square root of a quotient; None over zero."""
    return math.sqrt(one / other) if other else None


@dataclass(frozen=True)
class UpdateSurvival:
    """What one way to merge and quantize keeps of the update, of a weight, a layer or all weights.

    Sums are over elements, in float64. T is the trained weight: the base on which the adapter was
    trained with the update added in float32. U is the update: what merging adds to the base of this
    way. M is the merged weight, and Q quantizes.

    Attributes:
        scheme: that the merged weights are quantized with.
        onto: the scheme of the base into whose dequantized values the update is merged; "" for the
            base as stored.
        update: sum of U².
        trained: sum of the squared update of T.
        along: sum of (Q(M) - Q(base))·U.
        squared_error: sum of (Q(M) - T)².
        squared_apart: the same of the quantized base with the adapter kept apart from it.
    """

    scheme: str
    onto: str = ""
    update: float = 0.0
    trained: float = 0.0
    along: float = 0.0
    squared_error: float = 0.0
    squared_apart: float = 0.0

    PRINTED = (
        *("name", "scheme", "onto", "kept"),
        ("error_over_update", "error"),
        ("apart_error_over_update", "apart"),
    )

    def __add__(self, other: UpdateSurvival) -> UpdateSurvival:
        return UpdateSurvival(
            self.scheme, self.onto, *map(add, astuple(self)[2:], astuple(other)[2:])
        )

    def scaled(self, factor: float) -> UpdateSurvival:
        """The sums of more elements like these."""
        sums = (factor * value for value in astuple(self)[2:])
        return UpdateSurvival(self.scheme, self.onto, *sums)

    @property
    def name(self) -> str:
        return f"{self.scheme}{ONTO}{self.onto}" if self.onto else self.scheme

    @property
    def kept(self) -> float | None:
        """The projection of Q(M) - Q(base) onto U, over ‖U‖²: by how much of the update the
        quantized merged model differs from the quantized base. 1 is all of it; 0 means that
        rounding brings the update back to where the base was. Rounding errors of either sign cancel
        in it. None if there is no update."""
        return self.along / self.update if self.update else None

    @property
    def error(self) -> float | None:
        """‖Q(M) - T‖ / ‖update of T‖: the error in sizes of the update."""
        return ratio(self.squared_error, self.trained)

    @property
    def apart(self) -> float | None:
        """The same of the quantized base with the adapter kept apart in its own dtype."""
        return ratio(self.squared_apart, self.trained)


@dataclass(frozen=True)
class ChangedWeight:
    """A weight that the adapter changes. Sums are estimated for the whole from what was read.

    Attributes:
        rank: None for a weight that the adapter replaces.
        read: elements that were read.
        power: sum of the squared base.
        update: sum of the squared update, before it is rounded to the stored dtype.
        ways: what survives, in the order of the report's ways; empty for what is not quantized:
            norms, biases, embeddings and heads.
    """

    name: str
    shape: tuple[int, ...]
    rank: int | None
    parameters: int
    read: int
    power: float
    update: float
    ways: tuple[UpdateSurvival, ...]

    PRINTED = (
        *("name", "shape", "rank", "parameters"),
        ("sampled_parameters", "read"),
        ("update_over_weight", "relative"),
        ("merges", "ways"),
    )

    @property
    def relative(self) -> float | None:
        """The size of the update over the size of the weight."""
        return ratio(self.update, self.power)


@dataclass(frozen=True)
class DivergenceRow:
    """One model on the text.

    Attributes:
        name: of a way to merge, or the scheme of the base that the adapter is kept apart from.
        kind: MERGED or APART.
        kl_mean: None where logits are not finite.
        kl_stderr: from the means of the windows; None for one window.
        nbytes: of the whole model, with the adapter where it is kept apart.
        over_apart: of a merged model, its divergence less that of the same scheme with the adapter
            kept apart; None if one of the two is unknown.
        decided: whether that difference is beyond chance.
    """

    name: str
    kind: str
    kl_mean: float | None
    kl_stderr: float | None
    bits_per_parameter: float
    nbytes: int
    over_apart: float | None = None
    decided: bool = False

    PRINTED = (
        *("name", "kl_mean", "kl_stderr", "bits_per_parameter"),
        *(("bytes", "nbytes"), "over_apart", "decided"),
    )


@dataclass(frozen=True)
class MergedDivergence:
    """What the model loses on a text: how far the distribution of the next token is from that of
    the model with the adapter as it was trained, nats a token. `base` is that of the model without
    the adapter: what the adapter changes. `text` says what was read, as a sentence."""

    base: float | None
    rows: tuple[DivergenceRow, ...]
    text: str

    PRINTED = (
        ("base_kl_mean", "base"),
        (MERGED, lambda divergence: divergence.of(MERGED)),
        (APART, lambda divergence: divergence.of(APART)),
        "text",
    )

    def of(self, kind: str) -> tuple[DivergenceRow, ...]:
        return tuple(row for row in self.rows if row.kind == kind)


@dataclass(frozen=True)
class AdapterReport:
    """An adapter merged into a base and quantized.

    Attributes:
        trained_on: the scheme of the base in training; "" for the base as stored.
        merging, sample: how it is merged, and what was read, as sentences.
        ways: all weights together, and their `bits` per parameter of those that change.
        weights: the largest error first.
        divergence: None if no text was read.
    """

    base: Census
    adapter: str
    location: str
    words: str
    nbytes: int
    trained_on: str
    merging: str
    ways: tuple[UpdateSurvival, ...]
    bits: tuple[float, ...]
    weights: tuple[ChangedWeight, ...]
    sample: str
    notes: tuple[str, ...]
    divergence: MergedDivergence | None
    conclusion: str

    PRINTED = (
        ("model", "base"),
        (
            "adapter",
            (
                ("id", "adapter"),
                "location",
                ("kind", "words"),
                ("bytes", "nbytes"),
                "trained_on",
                ("merged_as", "merging"),
                ("update_over_weight", "relative"),
            ),
        ),
        "sample",
        "notes",
        (
            "merges",
            lambda report: [
                {**printed(way), "bits_per_parameter": bits}
                for way, bits in zip(report.ways, report.bits, strict=True)
            ],
        ),
        ("tensors", "weights"),
        "divergence",
    )

    @property
    def relative(self) -> float | None:
        """The size of the update over that of the weights it changes."""
        return ratio(sum(w.update for w in self.weights), sum(w.power for w in self.weights))


def survey(
    merge: Merge,
    schemes: Sequence[Scheme],
    trained_on: Scheme | None = None,
    *,
    full: bool = False,
    job: Job = IDLE,
) -> AdapterReport:
    """What survives of the update in each weight, under each scheme.

    Args:
        schemes: that the merged weights are quantized with.
        trained_on: the scheme of the base while the adapter was trained (QLoRA), if it is not the
            stored one. The update is then also merged into the dequantized base.
        full: read every element; otherwise a bounded, evenly spread sample of rows of each weight.

    Memory: about ten copies, as float32, of what is read of one weight.

    Raises:
        ModelError: rows cannot be read, or a merged value is not finite.
        UsageError: a scheme has one scale for the whole model.
    """
    refuse_model_scale([*schemes, *([trained_on] if trained_on else [])])
    infos = [merged.info for merged in merge.weights.values()]
    limit = limit_of(merge.base.origin, infos, full=full)
    weights = []
    parts = job.parts([info.elements for info in infos])
    for merged, part in zip(merge.weights.values(), parts, strict=True):
        part.at(0, words=merged.info.name)
        weights.append(_measured(merge, merged, schemes, trained_on, limit))
    # The largest error first; what is not quantized or does not change last.
    weights.sort(key=lambda w: -max((way.error or 0.0 for way in w.ways), default=-math.inf))
    return _report(merge, schemes, trained_on, weights)


def _measured(
    merge: Merge,
    merged: MergedWeight,
    schemes: Sequence[Scheme],
    trained_on: Scheme | None,
    limit: int | None,
) -> ChangedWeight:
    info, update = merged.info, merged.update
    rows = RowReader(merge.base, info.name)
    strips = sample_rows(*rows.shape, limit, merge.base.origin).strips
    base = read_strips(rows, strips)
    if broken := int(np.count_nonzero(~np.isfinite(base))):
        where = f"in {quoted(info.name)} of {quoted(merge.base.id)}"
        raise ModelError(f"{not_finite(broken, where)}.")
    merging = merged.merging(strips)
    exact, stored = merging(base, False), merging(base, True)

    def survivals() -> Iterator[UpdateSurvival]:
        # Of each order of merging: the base, and with the update before and after it is rounded to
        # the stored dtype. The last one is the base of the training.
        orders = [("", base, exact, stored)]
        if trained_on is not None:
            trained = round_stored(quantize(base, trained_on).dequantize(), merged.stored)
            whole = merging(trained, False)
            orders.append((str(trained_on), trained, whole, whole))
        _, trained, target, _ = orders[-1]
        power = sums(trained, target).error
        apart: dict[Scheme, float] = {}
        for onto, start, changed, rounded in orders:
            size = sums(start, changed).error
            for scheme in schemes:
                before, after = (quantize(x, scheme).dequantize() for x in (start, rounded))
                if scheme not in apart:
                    # Where the base was trained as it is quantized, nothing is lost by keeping it.
                    kept = trained if scheme == trained_on else before
                    apart[scheme] = sums(target, merging(kept, False)).error
                # The product of two differences, from the squares of four.
                along = sums(start, after).error + sums(changed, before).error
                along -= sums(changed, after).error + sums(start, before).error
                error = sums(target, after).error
                yield UpdateSurvival(
                    str(scheme), onto, size, power, along / 2, error, apart[scheme]
                )

    scale, difference = info.elements / base.size, sums(base, exact)
    return ChangedWeight(
        name=info.name,
        shape=info.shape,
        rank=None if update is None else int(update.a.shape[0]),
        parameters=info.elements,
        read=int(base.size),
        power=scale * difference.squared_a,
        update=scale * difference.error,
        ways=tuple(way.scaled(scale) for way in survivals()) if is_quantized(info) else (),
    )


def _report(
    merge: Merge,
    schemes: Sequence[Scheme],
    trained_on: Scheme | None,
    weights: Sequence[ChangedWeight],
) -> AdapterReport:
    orders = ("",) if trained_on is None else ("", str(trained_on))
    ways = [UpdateSurvival(str(scheme), onto) for onto in orders for scheme in schemes]
    matrices = [weight for weight in weights if weight.ways]
    infos = [merge.weights[weight.name].info for weight in matrices]
    parameters = sum(info.elements for info in infos) or 1
    bits = [sum(bits_per_parameter(s, i.matrix) * i.elements for i in infos) for s in schemes]
    source, settings = merge.adapter.source, merge.adapter.settings
    words = []
    if merge.adapter.modules:
        words.append(f"{settings.words}, {plural(len(merge.adapter.modules), 'module')}")
    if replaced := len(merge.adapter.replaced) - len(merge.added):
        words.append(f"{plural(replaced, 'tensor')} of the base replaced")
    stored = sorted({merged.stored or "float32" for merged in merge.weights.values()})
    onto = f"; and into the base dequantized from {trained_on}, without that rounding"
    report = AdapterReport(
        base=take_census(merge.base),
        adapter=source.id,
        location=source.location,
        words="; ".join(words),
        nbytes=source.nbytes,
        trained_on=orders[-1],
        merging=(
            f"W + s·B·A in float32, rounded once to {' or '.join(stored)}, as peft's "
            f"merge_and_unload does{onto if trained_on else ''}."
        ),
        ways=tuple(reduce(add, (w.ways[n] for w in matrices), way) for n, way in enumerate(ways)),
        bits=tuple(total / parameters for total in bits * len(orders)),
        weights=tuple(weights),
        sample=describe_sample(
            sum(w.read for w in weights),
            sum(w.parameters for w in weights),
            " of the weights that change",
        ),
        notes=merge.notes,
        divergence=None,
        conclusion="",
    )
    return replace(report, conclusion=conclude_adapter(report))


#: Below this share of the update, rounding has brought it back to the base for the most part.
ERASED = 0.5
#: From this share of the most on, as much of the update counts as left. What is lacking is lacking
#: in every layer alike, and costs a model more than rounding errors of either sign: of an adapter
#: of the demo, trained on NF4, 80% were left under an error of 0.76 sizes in one order and 99.6%
#: under 1.21 in the other; the first had twice the divergence.
WHOLE = 0.95


def conclude_adapter(report: AdapterReport, unread: str = "") -> str:
    """What survives of the update, beside keeping the adapter apart, and what to do. `unread` is a
    sentence that says why there is no divergence although a text was given."""
    if not report.weights:
        return (
            f"No tensor of {report.adapter} belongs to a weight of {report.base.model}: there is "
            f"nothing to merge."
        )
    moved = sum(1 for weight in report.weights if weight.update)
    if not moved:
        return (
            f"{report.adapter} changes nothing that was read: its updates are zero, as before the "
            f"first step of a training, so check that the trained adapter was saved."
        )
    ways = [way for way in report.ways if way.kept is not None]
    if not ways:
        return (
            f"{report.adapter} changes {plural(moved, 'weight')}, and none that is quantized: "
            f"norms, biases, embeddings and heads stay as stored."
        )
    if report.divergence is not None:
        return _by_divergence(report.divergence, ways)
    most = WHOLE * max(way.kept or 0.0 for way in ways)
    best = min(ways, key=lambda way: ((way.kept or 0.0) < most, way.error or 0.0))
    # Rounding may move the weights further than the update, or the other way.
    kept = f"{best.kept:.1%}" if 0.0005 < (best.kept or 0.0) < 0.9995 else "all"
    kept = "none" if (best.kept or 0.0) <= 0.0005 else kept
    lost = ", so that most of it is rounded away" if (best.kept or 0.0) < ERASED else ""
    apart = f"the error is {_size(best.apart)}" if best.apart else "it gives what was trained"
    return (
        f"Merged and quantized to {best.name}, {kept} of the update is left in the weights, under "
        f"a rounding error {_size(best.error)}{lost}; kept apart from a base in {best.scheme} "
        f"{apart}{f'. {unread}' if unread else '; give --text FILE to measure the model.'}"
    )


def _by_divergence(divergence: MergedDivergence, ways: Sequence[UpdateSurvival]) -> str:
    merged = [row for row in divergence.of(MERGED) if row.kl_mean is not None]
    if not merged:
        return (
            "Every merged model gives logits that are not finite: take a format that reaches "
            "further."
        )
    best = recommended(merged, lambda row: row.kl_mean or 0.0)
    scheme = next(way.scheme for way in ways if way.name == best.name)
    apart = next((row for row in divergence.of(APART) if row.name == scheme), None)
    said = (
        f"Merged and quantized to {best.name}, the model is {_nats(best)} from the trained one at "
        f"{best.bits_per_parameter:.2f} bits per parameter"
    )
    kept = best
    if apart is not None and apart.kl_mean is not None:
        said += f", a base in {scheme} with the adapter kept apart {_nats(apart)}"
        if best.decided and apart.kl_mean < (best.kl_mean or 0.0):
            kept = apart
    if divergence.base is not None and (kept.kl_mean or 0.0) >= divergence.base:
        return (
            f"{said}: quantizing changes the model more than the adapter does, so take more bits."
        )
    if kept is apart:
        return f"{said}: keep the adapter apart."
    if apart is None or best.decided:
        return f"{said}: merge with {best.name}."
    return f"{said}; this text cannot tell the two apart: merge it, one model to serve."


def _nats(row: DivergenceRow) -> str:
    spread = "" if row.kl_stderr is None else f" ± {row.kl_stderr:.2g}"
    return f"{row.kl_mean or 0.0:.3g}{spread} nats a token"


def _size(size: float | None) -> str:
    """`14× its size`; beyond a hundred without decimals."""
    value = size or 0.0
    return f"{value:,.0f}× its size" if value >= 100 else f"{value:.2g}× its size"
