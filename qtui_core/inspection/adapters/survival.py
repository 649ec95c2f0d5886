"""Merges an adapter into a base, quantizes the result, and measures what is left of the update."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np

from qtui_core.errors import ModelError
from qtui_core.inspection.adapters.merging import Merge, MergedWeight, is_quantized, round_stored
from qtui_core.inspection.adapters.report import (
    AdapterReport,
    ChangedWeight,
    UpdateSurvival,
    conclude_adapter,
)
from qtui_core.inspection.census import take_census
from qtui_core.inspection.comparison.difference import sums
from qtui_core.inspection.inspect import refuse_model_scale
from qtui_core.inspection.sample import limit_of, read_strips, sample_rows, strips_of
from qtui_core.inspection.sentences import describe_sample, not_finite
from qtui_core.job import IDLE, Job
from qtui_core.models.files.arrays import RowReader
from qtui_core.models.quoting import quoted
from qtui_core.quant import Scheme, bits_per_parameter, quantize
from qtui_core.quantities import plural


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
    strips = sample_rows(*rows.shape, limit, strips_of(merge.base.origin)).strips
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
        rounding=scale * sums(exact, stored).error,
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
