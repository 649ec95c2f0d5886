"""Merges an adapter into a base, quantizes the result, and measures what is left of the update."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np

from qtui_core.errors import ModelError
from qtui_core.inspection.adapters.merging import (
    Merge,
    MergedWeight,
    Merging,
    is_quantized,
    round_stored,
)
from qtui_core.inspection.adapters.report import (
    AdapterReport,
    ChangedWeight,
    LayerSurvival,
    UpdateSurvival,
    conclude_adapter,
    ratio,
)
from qtui_core.inspection.census import take_census
from qtui_core.inspection.comparison.difference import sums
from qtui_core.inspection.inspect import Progress, refuse_model_scale
from qtui_core.inspection.sample import limit_of, read_strips, sample_rows, strips_of
from qtui_core.inspection.sentences import describe_sample
from qtui_core.models.files.arrays import Float32
from qtui_core.models.quoting import quoted
from qtui_core.quant import Scheme, bits_per_parameter, quantize
from qtui_core.quantities import plural

_LAYER = re.compile(r"\.(\d{1,6})\.")


def survey(
    merge: Merge,
    schemes: Sequence[Scheme],
    trained_on: Scheme | None = None,
    *,
    full: bool = False,
    progress: Progress | None = None,
) -> AdapterReport:
    """What survives of the update in each weight, under each scheme.

    Args:
        schemes: that the merged weights are quantized with.
        trained_on: the scheme of the base while the adapter was trained (QLoRA), if it is not the
            stored one. The update is then also merged into the dequantized base.
        full: read every element; otherwise a bounded, evenly spread sample of rows of each weight.
        progress: called as weights are done.

    Memory: about ten copies, as float32, of what is read of one weight.

    Raises:
        ModelError: rows cannot be read, or a merged value is not finite.
        UsageError: a scheme has one scale for the whole model.
    """
    refuse_model_scale([*schemes, *([trained_on] if trained_on else [])])
    infos = [merged.info for merged in merge.weights.values()]
    limit = limit_of(merge.base.origin, infos, full=full)
    total = sum(info.elements for info in infos)
    done, weights = 0, []
    for merged in merge.weights.values():
        if progress:
            progress(done, total, merged.name)
        weights.append(_measured(merge, merged, schemes, trained_on, limit))
        done += merged.info.elements
    weights.sort(key=_badness)
    return _report(merge, schemes, trained_on, weights)


def _measured(
    merge: Merge,
    merged: MergedWeight,
    schemes: Sequence[Scheme],
    trained_on: Scheme | None,
    limit: int | None,
) -> ChangedWeight:
    rows = merge.open_base(merged)
    strips = sample_rows(rows.shape[0], rows.shape[1], limit, strips_of(merge.base.origin)).strips
    base = read_strips(rows, strips)
    if not np.isfinite(base).all():
        raise ModelError(
            f"{quoted(merged.name)} of {quoted(merge.base.id)} has NaN or infinite values: find "
            f"out where they come from first."
        )
    merging = merged.merging(strips)
    exact, stored = merging(base, False), merging(base, True)
    scale = merged.info.elements / base.size
    ways: list[UpdateSurvival] = []
    if is_quantized(merged.info):
        bases = [("", base, exact, stored)]
        if trained_on is not None:
            trained = round_stored(quantize(base, trained_on).dequantize(), merged.stored)
            target = merging(trained, False)
            bases.append((str(trained_on), trained, target, target))
        ways = [way.scaled(scale) for way in _survivals(merging, bases, schemes, trained_on)]
    update = sums(base, exact)
    return ChangedWeight(
        name=merged.name,
        shape=merged.weight.shape,
        rank=merged.rank,
        parameters=merged.info.elements,
        read=int(base.size),
        power=scale * update.squared_a,
        update=scale * update.error,
        rounding=scale * sums(exact, stored).error,
        ways=tuple(ways),
    )


def _survivals(
    merging: Merging,
    bases: Sequence[tuple[str, Float32, Float32, Float32]],
    schemes: Sequence[Scheme],
    trained_on: Scheme | None,
) -> Iterator[UpdateSurvival]:
    """What survives of one weight, way by way. Each of `bases` is: the scheme that it was trained
    in, its values, and these with the update before and after it is rounded to the stored dtype;
    the last one is the base of the training."""
    _, trained, target, _ = bases[-1]
    power = sums(trained, target).error
    apart: dict[Scheme, float] = {}
    for onto, start, update, merged in bases:
        size = sums(start, update).error
        for scheme in schemes:
            before, after = (quantize(each, scheme).dequantize() for each in (start, merged))
            if scheme not in apart:
                # Where the base was trained as it is quantized, nothing is lost by keeping it.
                kept = trained if scheme == trained_on else before
                apart[scheme] = sums(target, merging(kept, False)).error
            # The product of two differences, from the squares of four.
            along = sums(start, after).error + sums(update, before).error
            along -= sums(update, after).error + sums(start, before).error
            error = sums(target, after).error
            yield UpdateSurvival(str(scheme), onto, size, power, along / 2, error, apart[scheme])


def _badness(weight: ChangedWeight) -> float:
    """Orders weights by the least share; what is not quantized or does not change last."""
    return min((way.share for way in weight.ways if way.share is not None), default=math.inf)


def _report(
    merge: Merge,
    schemes: Sequence[Scheme],
    trained_on: Scheme | None,
    weights: Sequence[ChangedWeight],
) -> AdapterReport:
    onto = ("",) if trained_on is None else ("", str(trained_on))
    ways = [UpdateSurvival(str(scheme), base) for base in onto for scheme in schemes]
    matrices = [merge.weights[w.name].weight for w in weights if w.ways]
    parameters = sum(weight.parameters for weight in matrices) or 1
    bits = [
        sum(bits_per_parameter(scheme, each.info.matrix) * each.parameters for each in matrices)
        for scheme in schemes
    ] * len(onto)
    source = merge.adapter.source
    read, there = sum(w.read for w in weights), sum(w.parameters for w in weights)
    report = AdapterReport(
        base=take_census(merge.base),
        adapter=source.id,
        location=source.location,
        words=_adapter_words(merge),
        nbytes=source.nbytes,
        trained_on=onto[-1],
        merging=_merging(merge, onto[-1]),
        ways=_together(weights, ways),
        bits=tuple(each / parameters for each in bits),
        weights=tuple(weights),
        layers=tuple(_layers(weights, ways)),
        sample=describe_sample(read, there, " of the weights that change"),
        notes=merge.notes,
        divergence=None,
        conclusion="",
    )
    return replace(report, conclusion=conclude_adapter(report))


def _together(
    weights: Sequence[ChangedWeight], ways: Sequence[UpdateSurvival]
) -> tuple[UpdateSurvival, ...]:
    matrices = [weight for weight in weights if weight.ways]
    return tuple(
        reduce(add, (weight.ways[number] for weight in matrices), way)
        for number, way in enumerate(ways)
    )


def _layers(
    weights: Sequence[ChangedWeight], ways: Sequence[UpdateSurvival]
) -> Iterator[LayerSurvival]:
    grouped: dict[int | None, list[ChangedWeight]] = {}
    for weight in weights:
        if weight.ways:
            match = _LAYER.search(weight.name)
            grouped.setdefault(int(match[1]) if match else None, []).append(weight)
    for layer in sorted(grouped, key=lambda layer: (layer is None, layer or 0)):
        own = grouped[layer]
        size = ratio(sum(w.update for w in own), sum(w.power for w in own))
        yield LayerSurvival(layer, len(own), size, _together(own, ways))


def _adapter_words(merge: Merge) -> str:
    adapter, parts = merge.adapter, []
    if adapter.modules:
        parts.append(f"{adapter.settings.words}, {plural(len(adapter.modules), 'module')}")
    if replaced := len(adapter.replaced) - len(merge.added):
        parts.append(f"{plural(replaced, 'tensor')} of the base replaced")
    return "; ".join(parts)


def _merging(merge: Merge, trained_on: str) -> str:
    stored = sorted({merged.stored or "float32" for merged in merge.weights.values()})
    said = (
        f"W + s·B·A in float32, rounded once to {' or '.join(stored)}, as peft's merge_and_unload "
        f"does"
    )
    if any(merged.weight.quantized for merged in merge.weights.values()):
        said = (
            "W + s·B·A in float32, W dequantized, as peft merges into a packed base; nothing is "
            "rounded before it is quantized again (give the original base and --trained-on to "
            "compare merging into that)"
        )
    onto = f"; and into the base dequantized from {trained_on}, without that rounding"
    return f"{said}{onto if trained_on else ''}."
