"""Merges an adapter into a base, quantizes the result, and measures what is left of the update."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError, UsageError
from qtui_core.inspection.adapters.conclude import conclude_adapter
from qtui_core.inspection.adapters.merging import (
    Merge,
    MergedRows,
    MergedWeight,
    is_quantized,
    round_stored,
)
from qtui_core.inspection.adapters.report import (
    AdapterReport,
    ChangedWeight,
    LayerSurvival,
    MergeWay,
    SurvivalSums,
    UpdateSurvival,
    ratio,
)
from qtui_core.inspection.census import take_census
from qtui_core.inspection.inspect import Progress
from qtui_core.inspection.rows import strips_of
from qtui_core.inspection.sample import RowSample, limit_of, sample_rows
from qtui_core.models.files.arrays import Float32
from qtui_core.models.quoting import quoted
from qtui_core.packed.views import Rows
from qtui_core.quant import PerModel, Scheme, bits_per_parameter, quantize
from qtui_core.quantities import plural

#: Elements of a product that are summed in float64 at once. Below 10,000, OpenBLAS computes a
#: product in one thread; several threads cost far more when a core is busy.
_CHUNK = 1 << 13
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
    for scheme in (*schemes, *([trained_on] if trained_on else [])):
        if isinstance(scheme.granularity, PerModel):
            raise UsageError(
                f"{scheme} shares one scale among all tensors, and not all of them are merged: "
                f"write {scheme.format}:tensor."
            )
    ways = tuple(MergeWay(str(scheme)) for scheme in schemes)
    if trained_on is not None:
        ways += tuple(MergeWay(str(scheme), str(trained_on)) for scheme in schemes)
    total = sum(merged.info.elements for merged in merge.weights.values())
    done, weights = 0, []
    infos = [merged.info for merged in merge.weights.values()]
    limit = limit_of(merge.base.origin, infos, full=full)
    for merged in merge.weights.values():
        if progress:
            progress(done, total, merged.name)
        weights.append(_measured(merge, merged, schemes, trained_on, limit))
        done += merged.info.elements
    weights.sort(key=_badness)
    return _report(merge, ways, schemes, trained_on, weights)


class _HeldRows:
    """Strips of rows that are in memory, by their places in the weight."""

    def __init__(self, shape: tuple[int, int], sample: RowSample, values: Float32) -> None:
        """`values`: the rows of all strips, one after the other."""
        self.shape = shape
        ends = np.cumsum([stop - start for start, stop in sample.strips])[:-1]
        self._parts = dict(zip(sample.strips, np.split(values, ends), strict=True))
        self._whole = values if sample.is_whole else None

    def rows(self, start: int, stop: int) -> Float32:
        part = self._parts.get((start, stop))
        if part is not None:
            return part
        assert self._whole is not None, "rows outside the sample"
        return self._whole[start:stop]


@dataclass(frozen=True, eq=False)
class _SampleReader:
    """Reads one weight.

    Attributes:
        shape: (rows, columns) of the whole weight.
        sample: what is read of it.
    """

    merged: MergedWeight
    shape: tuple[int, int]
    sample: RowSample

    def read(self, rows: Rows) -> Float32:
        return np.concatenate([rows.rows(*strip) for strip in self.sample.strips])

    def over(self, base: Float32, *, rounded: bool) -> Float32:
        """The rows that are read, with the update merged into `base`."""
        held = _HeldRows(self.shape, self.sample, base)
        return self.read(MergedRows(self.merged, held, rounded=rounded))


def _measured(
    merge: Merge,
    merged: MergedWeight,
    schemes: Sequence[Scheme],
    trained_on: Scheme | None,
    limit: int | None,
) -> ChangedWeight:
    rows = merge.open_base(merged)
    # DoRA's norms of columns take all rows.
    if merged.magnitude is not None and merged.by_column:
        limit = None
    sample = sample_rows(rows.shape[0], rows.shape[1], limit, strips_of(merge.base.origin))
    reader = _SampleReader(merged, rows.shape, sample)
    base = reader.read(rows)
    if not np.isfinite(base).all():
        raise ModelError(
            f"{quoted(merged.name)} of {quoted(merge.base.id)} has NaN or infinite values: find "
            f"out where they come from first."
        )
    if merged.update is not None:  # computed once, as it is added to several bases
        held = _HeldRows(rows.shape, sample, reader.read(merged.update))
        reader = replace(reader, merged=replace(merged, update=held))
    exact = reader.over(base, rounded=False)
    stored = reader.over(base, rounded=True)
    scale = merged.info.elements / base.size
    survivals: list[UpdateSurvival] = []
    if is_quantized(merged.info):
        trained = base
        if trained_on is not None:
            trained = round_stored(quantize(base, trained_on).dequantize(), merged.stored)
        survivals = _survivals(reader, base, exact, stored, trained, schemes, trained_on, scale)
    return ChangedWeight(
        name=merged.name,
        shape=merged.weight.shape,
        rank=merged.rank,
        parameters=merged.info.elements,
        read=int(base.size),
        power=scale * _product(base, base),
        update=scale * _squared(exact, base),
        rounding=scale * _squared(stored, exact),
        ways=tuple(survivals),
    )


def _survivals(
    reader: _SampleReader,
    base: Float32,
    exact: Float32,
    stored: Float32,
    trained: Float32,
    schemes: Sequence[Scheme],
    trained_on: Scheme | None,
    scale: float,
) -> list[UpdateSurvival]:
    """What survives of one weight, way by way. `trained` is the base in training; `exact` and
    `stored` are the base with the update, before and after it is rounded to the stored dtype."""
    target = exact if trained_on is None else reader.over(trained, rounded=False)
    power = _squared(target, trained)
    apart: dict[Scheme, float] = {}
    found = []
    for onto, start, update, merged in (
        ("", base, exact, stored),
        (str(trained_on), trained, target, target),
    )[: 1 if trained_on is None else 2]:
        size = _squared(update, start)
        for scheme in schemes:
            before, after = (quantize(each, scheme).dequantize() for each in (start, merged))
            if scheme not in apart:
                # Where the base was trained as it is quantized, nothing is lost by keeping it.
                kept = trained if scheme == trained_on else before
                apart[scheme] = _squared(_unmerged(reader, kept, target), target)
            lost = int(np.count_nonzero(~np.isfinite(after) | ~np.isfinite(before)))
            sums = SurvivalSums(lost=lost)
            if not lost:
                along = _product(after, update, start) - _product(before, update, start)
                sums = SurvivalSums(size, power, along, _squared(after, target), apart[scheme])
            found.append(UpdateSurvival(MergeWay(str(scheme), onto), _scaled(sums, scale)))
    return found


def _unmerged(reader: _SampleReader, kept: Float32, target: Float32) -> Float32:
    """A quantized base with the adapter beside it; the target itself where that overflows, which is
    told of the merged weight."""
    return reader.over(kept, rounded=False) if np.isfinite(kept).all() else target


def _scaled(sums: SurvivalSums, scale: float) -> SurvivalSums:
    update, trained, along = scale * sums.update, scale * sums.trained, scale * sums.along
    return SurvivalSums(update, trained, along, scale * sums.error, scale * sums.apart, sums.lost)


def _product(one: Float32, other: Float32, less: Float32 | None = None) -> float:
    """The sum of one · (other - less), in float64."""
    total = 0.0
    flat = [np.ravel(e) for e in (one, other, *([] if less is None else [less]))]
    for start in range(0, one.size, _CHUNK):
        x, y, *taken = (each[start : start + _CHUNK].astype(np.float64) for each in flat)
        total += float(x @ (y - sum(taken)))
    return total


def _squared(one: Float32, other: Float32) -> float:
    """The sum of (one - other)², in float64."""
    return _product(one, one, other) - _product(other, one, other)


def _badness(weight: ChangedWeight) -> tuple[int, float]:
    """A key that orders weights: those that overflow, then by the least share; what is not
    quantized or does not change last."""
    if any(way.sums.lost for way in weight.ways):
        return (0, 0.0)
    shares = [way.share for way in weight.ways if way.share is not None]
    return (1, min(shares)) if shares else (2, 0.0)


def _report(
    merge: Merge,
    ways: tuple[MergeWay, ...],
    schemes: Sequence[Scheme],
    trained_on: Scheme | None,
    weights: list[ChangedWeight],
) -> AdapterReport:
    matrices = [merge.weights[w.name].weight for w in weights if w.ways]
    parameters = sum(weight.parameters for weight in matrices)
    bits = [
        sum(bits_per_parameter(scheme, each.info.matrix) * each.parameters for each in matrices)
        for scheme in schemes
    ] * (len(ways) // len(schemes))
    read = sum(w.read for w in weights)
    there = sum(w.parameters for w in weights)
    adapter = merge.adapter
    found = AdapterReport(
        base=take_census(merge.base),
        adapter=adapter.source.id,
        location=adapter.source.location,
        words=_adapter_words(merge),
        nbytes=adapter.source.nbytes,
        trained_on="" if trained_on is None else str(trained_on),
        merging=_merging(merge, trained_on),
        ways=tuple(_together(weights, number, way) for number, way in enumerate(ways)),
        bits=tuple(each / parameters if parameters else 0.0 for each in bits),
        weights=tuple(weights),
        layers=tuple(_layers(weights, ways)),
        sample=_sample_words(read, there),
        notes=merge.notes,
        divergence=None,
        conclusion="",
    )
    return replace(found, conclusion=conclude_adapter(found))


def _together(weights: Sequence[ChangedWeight], number: int, way: MergeWay) -> UpdateSurvival:
    sums = [weight.ways[number].sums for weight in weights if weight.ways]
    return UpdateSurvival(way, reduce(add, sums, SurvivalSums()))


def _layers(weights: Sequence[ChangedWeight], ways: Sequence[MergeWay]) -> list[LayerSurvival]:
    grouped: dict[int | None, list[ChangedWeight]] = {}
    for weight in weights:
        if weight.ways:
            match = _LAYER.search(weight.name)
            grouped.setdefault(int(match[1]) if match else None, []).append(weight)
    return [
        LayerSurvival(
            layer,
            len(grouped[layer]),
            ratio(sum(w.update for w in grouped[layer]), sum(w.power for w in grouped[layer])),
            tuple(_together(grouped[layer], number, way) for number, way in enumerate(ways)),
        )
        for layer in sorted(grouped, key=lambda layer: (layer is None, layer or 0))
    ]


def _adapter_words(merge: Merge) -> str:
    adapter = merge.adapter
    parts = []
    if adapter.modules:
        parts.append(f"{adapter.settings.words}, {plural(len(adapter.modules), 'module')}")
    replaced = len(adapter.replaced) - len(merge.added)
    if replaced:
        parts.append(f"{plural(replaced, 'tensor')} of the base replaced")
    return "; ".join(parts)


def _merging(merge: Merge, trained_on: Scheme | None) -> str:
    stored = sorted({merged.stored or "float32" for merged in merge.weights.values()})
    into = " or ".join(stored)
    said = f"W + s·B·A in float32, rounded once to {into}, as peft's merge_and_unload does"
    if any(merged.weight.quantized for merged in merge.weights.values()):
        said = (
            "W + s·B·A in float32, W dequantized, as peft merges into a packed base; nothing is "
            "rounded before it is quantized again (give the original base and --trained-on to "
            "compare merging into that)"
        )
    if trained_on is not None:
        said += f"; and into the base dequantized from {trained_on}, without that rounding"
    return said + "."


def _sample_words(read: int, there: int) -> str:
    if read == there:
        return f"Every element of the weights that change was read: {read:,}."
    return (
        f"A sample: {read:,} of {there:,} elements ({read / there:.2g} of all) of the weights that "
        f"change, in whole rows; scales per tensor or column are those of the sample, and --full "
        f"reads all."
    )
