"""Compares the weights that two checkpoints have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from qtui_core.errors import ModelError, QtuiError, UsageError
from qtui_core.inspection.census import take_census
from qtui_core.inspection.comparison.difference import DifferenceMap, difference, difference_map
from qtui_core.inspection.comparison.pairing import Pair, Pairing, open_pair, pair_weights
from qtui_core.inspection.comparison.report import Comparison, PairReport, conclude_comparison
from qtui_core.inspection.inspect import Progress
from qtui_core.inspection.sample import Strip, limit_of, sample_rows, strips_of
from qtui_core.inspection.sentences import describe_sample
from qtui_core.job import Job
from qtui_core.models import ModelSource, row_elements, rows_of
from qtui_core.models.files.arrays import Float32
from qtui_core.quant import Scheme, measure

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
    origin = "hub" if "hub" in (a.origin, b.origin) else a.origin
    limit = limit_of(origin, [pair.info for pair in pairing.pairs], full=full)

    def strips_read(pair: Pair) -> Sequence[Strip]:
        shape = rows_of(pair.info), row_elements(pair.info)
        return sample_rows(*shape, limit, strips_of(origin)).strips

    total = sum(p.info.elements for p in pairing.pairs)
    reports: list[PairReport] = []
    unread: list[tuple[str, str]] = []
    done = 0
    for pair in pairing.pairs:

        def advance(share: float, pair: Pair = pair, done: int = done) -> None:
            if progress:
                progress(done + round(share * pair.info.elements), total, pair.name)

        advance(0.0)
        try:
            reports.append(_compare_pair(a, b, pair, strips_read(pair), advance))
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
    worst = next((r.pair for r in ranked if r.difference.mse and r.is_matrix), None)
    worst_map = None
    if worst is not None:
        rows = open_pair(a, b, worst)
        strips = strips_read(worst)
        worst_map = difference_map(worst.name, *rows, strips, MAP_ROWS, MAP_COLUMNS)
    return _summarise(a, b, pairing, ranked, unread, worst_map)


def _compare_pair(
    a: ModelSource,
    b: ModelSource,
    pair: Pair,
    strips: Sequence[Strip],
    advance: Callable[[float], None],
) -> PairReport:
    rows_a, rows_b = open_pair(a, b, pair)
    whole = sum(stop - start for start, stop in strips) == rows_a.shape[0]
    rounds = pair.b.scheme is not None and not pair.a.quantized and len(pair.info.shape) >= 2
    kept: list[Float32] | None = [] if rounds and not whole else None
    found = difference(rows_a, rows_b, strips, lambda share: advance(0.7 * share), kept)
    if found.identical and pair.a.method in _WIDER:
        # Values of dtypes wider than float32 are equal only if their stored bytes are.
        same = pair.b.method == pair.a.method and all(
            a.read_rows(pair.a.stored, *strip) == b.read_rows(pair.b.stored, *strip)
            for strip in strips
        )
        found.identical = same
    if rounds:
        assert pair.b.scheme is not None
        try:
            scheme = Scheme.parse(pair.b.scheme)
            values = rows_a if kept is None else np.concatenate(kept)
            plain = measure(
                values, scheme, job=Job(lambda done, total, _: advance(0.7 + 0.3 * done / total))
            )
            return PairReport(pair, found, str(scheme), plain.relative_mse)
        except UsageError:
            pass  # a scheme that has no coder
    return PairReport(pair, found)


def _badness(report: PairReport) -> tuple[int, float]:
    """A key that orders weights: first those with values that are not finite, then by relative
    error; identical ones last."""
    found = report.difference
    if found.nonfinite:
        return (2, found.lost or 0.0)
    if found.relative_mse is None:
        return (1, math.inf) if found.mse else (0, 0.0)
    return (1, found.relative_mse)


def _summarise(
    a: ModelSource,
    b: ModelSource,
    pairing: Pairing,
    ranked: Sequence[PairReport],
    unread: Sequence[tuple[str, str]],
    worst_map: DifferenceMap | None,
) -> Comparison:
    matrices = [r for r in ranked if r.is_matrix]
    # Norms have much energy and are seldom quantized: they would make the total look better.
    counted = matrices if any(r.error for r in matrices) else ranked
    parameters = sum(r.pair.info.elements for r in ranked) or 1
    rounded = [r for r in ranked if r.scheme_relative_mse is not None and r.power]
    # An expert counts its share of its stored tensor.
    bits_a = sum(r.pair.a.bits_per_parameter * r.pair.info.elements for r in ranked)
    bits_b = sum(r.pair.b.bits_per_parameter * r.pair.info.elements for r in ranked)
    comparison = Comparison(
        a=take_census(a),
        b=take_census(b),
        pairs=tuple(ranked),
        only_a=pairing.only_a,
        only_b=pairing.only_b,
        shapes=pairing.shapes,
        unread=tuple(unread),
        notes=pairing.notes,
        sample=describe_sample(
            sum(r.difference.count for r in ranked),
            sum(r.pair.info.elements for r in ranked),
            " of the weights in both",
        ),
        relative_mse=_weighted(counted, lambda r: r.difference.relative_mse),
        bits_a=bits_a / parameters,
        bits_b=bits_b / parameters,
        rounded=len(rounded),
        rounded_relative_mse=_weighted(rounded, lambda r: r.scheme_relative_mse),
        stored_relative_mse=_weighted(rounded, lambda r: r.difference.relative_mse),
        worst_map=worst_map,
        conclusion="",
    )
    return replace(comparison, conclusion=conclude_comparison(comparison))


def _weighted(
    reports: Sequence[PairReport], of: Callable[[PairReport], float | None]
) -> float | None:
    """Mean of relative errors, weighted by energy."""
    power = sum(r.power for r in reports)
    return sum((of(r) or 0.0) * r.power for r in reports) / power if power else None
