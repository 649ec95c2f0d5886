"""Compares the weights that two checkpoints have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from qtui_core.errors import ModelError, QtuiError, UsageError
from qtui_core.inspection.census import take_census
from qtui_core.inspection.comparison.conclude import conclude_comparison
from qtui_core.inspection.comparison.difference import Difference, difference
from qtui_core.inspection.comparison.difference_map import difference_map
from qtui_core.inspection.comparison.pairing import Pair, Pairing, open_pair, pair_weights
from qtui_core.inspection.comparison.report import Comparison, PairReport, WorstMap
from qtui_core.inspection.inspect import Progress
from qtui_core.inspection.rows import strips_of
from qtui_core.inspection.sample import RowSample, limit_of, sample_rows
from qtui_core.models import ModelSource, row_elements, rows_of
from qtui_core.packed.views import Rows
from qtui_core.quant import Scheme, measure
from qtui_core.quantities import percent

#: Cells of the map of the worst weight.
MAP_ROWS, MAP_COLUMNS = 16, 48
#: Dtypes that float32 does not hold exactly: their values may differ though they are equal as
#: float32.
_WIDER = frozenset({"F64", "I64", "U64", "I32", "U32"})


def compare_models(
    a: ModelSource,
    b: ModelSource,
    *,
    full: bool = False,
    pattern: str | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Decodes every weight that both models have, and measures how far b's is from a's.

    Args:
        a, b: open models; errors are relative to a.
        full: read every element; otherwise a bounded, evenly spread sample of rows of each weight.
        pattern: shell pattern of names, in either model.
        progress: called as chunks are done.

    Memory is bounded by two samples or, with `full`, by chunks of half a million elements; a weight
    that its library decodes only as a whole takes its full size once.

    Raises:
        ModelError: no weight matches, or none of the matching ones could be read.
        UsageError: nothing matches `pattern`, or a library that decodes is not installed.
    """
    pairing = pair_weights(a, b, pattern)
    remote = "hub" in (a.origin, b.origin)
    origin = "hub" if remote else a.origin
    limit = limit_of(origin, [pair.info for pair in pairing.pairs], full=full)
    strips = strips_of(origin)
    total = sum(p.info.elements for p in pairing.pairs)
    reports: list[PairReport] = []
    unread: list[tuple[str, str]] = []
    done = 0
    for pair in pairing.pairs:

        def advance(share: float, pair: Pair = pair, done: int = done) -> None:
            if progress:
                progress(done + round(share * pair.info.elements), total, pair.name)

        advance(0.0)
        sample = sample_rows(rows_of(pair.info), row_elements(pair.info), limit, strips)
        try:
            reports.append(_compare_pair(a, b, pair, sample, advance))
        except UsageError:
            raise  # a missing library, which would fail every other weight too
        except QtuiError as error:
            unread.append((pair.name, str(error)))
        advance(1.0)
        done += pair.info.elements
    if unread and not reports:
        more = f" {len(unread) - 1:,} more weights fail likewise." if len(unread) > 1 else ""
        raise ModelError(f"{unread[0][1]}{more}")
    ranked = sorted(reports, key=_badness, reverse=True)
    return _summarise(a, b, pairing, ranked, unread, _map_of_worst(a, b, ranked, limit, strips))


def _compare_pair(
    a: ModelSource,
    b: ModelSource,
    pair: Pair,
    sample: RowSample,
    advance: Callable[[float], None],
) -> PairReport:
    rows_a, rows_b = open_pair(a, b, pair)
    held: Rows = rows_a if sample.is_whole else _Kept(rows_a)
    found = difference(held, rows_b, sample.strips, lambda share: advance(0.7 * share))
    if found.identical and pair.a.method in _WIDER:
        found = _recheck(a, b, pair, sample, found)
    scheme, rounded = None, None
    if pair.b.scheme is not None and not pair.a.quantized and len(pair.info.shape) >= 2:
        values = held.sample() if isinstance(held, _Kept) else rows_a
        scheme, rounded = _plain_rounding(pair.b.scheme, values, advance)
    return PairReport(
        pair=pair,
        difference=found,
        scheme=scheme,
        scheme_relative_mse=rounded,
    )


class _Kept:
    """Rows that are kept as they are read, so that a sample can be used again."""

    def __init__(self, rows: Rows) -> None:
        self.shape = rows.shape
        self._rows = rows
        self._parts: list[np.ndarray] = []

    def rows(self, start: int, stop: int) -> np.ndarray:
        part = self._rows.rows(start, stop)
        self._parts.append(part)
        return part

    def sample(self) -> np.ndarray:
        """All rows read so far, in that order: float32 `[rows, columns]`."""
        return np.concatenate(self._parts)


def _plain_rounding(
    text: str, values: Rows | np.ndarray, advance: Callable[[float], None]
) -> tuple[str | None, float | None]:
    """The scheme's full text, and its relative MSE; None and None for a scheme that has no
    coder."""
    try:
        scheme = Scheme.parse(text)
        report = measure(values, scheme, progress=lambda share: advance(0.7 + 0.3 * share))
    except UsageError:
        return None, None
    return str(scheme), report.relative_mse


def _recheck(
    a: ModelSource, b: ModelSource, pair: Pair, sample: RowSample, found: Difference
) -> Difference:
    """The difference with `identical` decided anew: values of dtypes wider than float32 are equal
    only if their stored bytes are."""
    if pair.b.method != pair.a.method:
        return replace(found, identical=False)
    same = all(
        a.read_rows(pair.a.stored, *strip) == b.read_rows(pair.b.stored, *strip)
        for strip in sample.strips
    )
    return replace(found, identical=same)


def _badness(report: PairReport) -> tuple[int, float]:
    """A key that orders weights: first those with values that are not finite, then by relative
    error; identical ones last."""
    found = report.difference
    if found.nonfinite:
        return (2, found.lost or 0.0)
    if found.relative_mse is None:
        return (1, math.inf) if found.mse else (0, 0.0)
    return (1, found.relative_mse)


def _map_of_worst(
    a: ModelSource,
    b: ModelSource,
    ranked: Sequence[PairReport],
    limit: int | None,
    strips: int,
) -> WorstMap | None:
    worst = next((r for r in ranked if r.difference.mse and len(r.pair.info.shape) >= 2), None)
    if worst is None:
        return None
    info = worst.pair.info
    sample = sample_rows(rows_of(info), row_elements(info), limit, strips)
    rows_a, rows_b = open_pair(a, b, worst.pair)
    return WorstMap(
        worst.pair.name, difference_map(rows_a, rows_b, sample.strips, MAP_ROWS, MAP_COLUMNS)
    )


def _summarise(
    a: ModelSource,
    b: ModelSource,
    pairing: Pairing,
    ranked: Sequence[PairReport],
    unread: Sequence[tuple[str, str]],
    worst_map: WorstMap | None,
) -> Comparison:
    matrices = [r for r in ranked if len(r.pair.info.shape) >= 2]
    # Norms have much energy and are seldom quantized: they would make the total look better.
    counted = matrices if any(r.error for r in matrices) else ranked
    parameters = sum(r.pair.info.elements for r in ranked)
    rounded = [r for r in ranked if r.scheme_relative_mse is not None and r.power]
    comparison = Comparison(
        a=take_census(a),
        b=take_census(b),
        pairs=tuple(ranked),
        only_a=pairing.only_a,
        only_b=pairing.only_b,
        shapes=pairing.shapes,
        unread=tuple(unread),
        notes=pairing.notes,
        sample=_describe_sample(ranked),
        relative_mse=_weighted(counted, lambda r: r.difference.relative_mse),
        bits_a=_bits(ranked, parameters, of_b=False),
        bits_b=_bits(ranked, parameters, of_b=True),
        rounded=len(rounded),
        rounded_relative_mse=_weighted(rounded, lambda r: r.scheme_relative_mse),
        stored_relative_mse=_weighted(rounded, lambda r: r.difference.relative_mse),
        worst_map=worst_map,
        conclusion="",
    )
    return replace(comparison, conclusion=conclude_comparison(comparison))


def _bits(reports: Sequence[PairReport], parameters: int, *, of_b: bool) -> float:
    """Bits per parameter of all pairs in one model; an expert counts its share of its stored
    tensor."""
    bits = sum(
        (r.pair.b if of_b else r.pair.a).bits_per_parameter * r.pair.info.elements for r in reports
    )
    return bits / parameters if parameters else 0.0


def _weighted(
    reports: Sequence[PairReport], of: Callable[[PairReport], float | None]
) -> float | None:
    """Mean of relative errors, weighted by energy."""
    power = sum(r.power for r in reports)
    return sum((of(r) or 0.0) * r.power for r in reports) / power if power else None


def _describe_sample(reports: Sequence[PairReport]) -> str:
    read = sum(r.difference.count for r in reports)
    there = sum(r.pair.info.elements for r in reports)
    if read == there:
        return f"Every element of the weights in both was read: {read:,}."
    cut = sum(1 for r in reports if r.difference.count < r.pair.info.elements)
    large = "1 weight" if cut == 1 else f"{cut:,} weights"
    return (
        f"A sample: {read:,} of {there:,} elements ({percent(read / there)} of all), whole rows "
        f"spread evenly over {large} too large to read in full; --full reads all."
    )
