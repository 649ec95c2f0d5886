"""Compares the weights that two checkpoints have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qtui_core.errors import ModelError, QtuiError, UsageError
from qtui_core.inspection.census import take_census
from qtui_core.inspection.comparison.difference import difference
from qtui_core.inspection.comparison.pairing import Pair, open_pair, pair_weights
from qtui_core.inspection.comparison.report import Comparison, PairReport
from qtui_core.inspection.sample import Strip, limit_of, sample_rows, strips_of
from qtui_core.job import IDLE, Cancelled, Job
from qtui_core.models import ModelSource, row_elements, rows_of
from qtui_core.models.files.arrays import Float32
from qtui_core.quant import Scheme, measure

#: Dtypes that float32 does not hold exactly: their values may differ though they are equal as
#: float32.
_WIDER = frozenset({"F64", "I64", "U64", "I32", "U32"})


def compare_models(
    a: ModelSource,
    b: ModelSource,
    *,
    full: bool = False,
    pattern: str | None = None,
    job: Job = IDLE,
) -> Comparison:
    """Decodes every weight that both models have, and measures how far b's is from a's.

    Args:
        a, b: open models; errors are relative to a.
        full: read every element; otherwise a bounded, evenly spread sample of rows of each weight.
        pattern: shell pattern of names, in either model.

    Memory is bounded by two samples or, with `full`, by chunks of half a million elements; a weight
    that its library decodes only as a whole takes its full size once.

    Raises:
        ModelError: no weight matches, or none of the matching ones could be read.
        UsageError: nothing matches `pattern`, or a library that decodes is not installed.
    """
    pairing = pair_weights(a, b, pattern)
    origin = "hub" if "hub" in (a.origin, b.origin) else a.origin
    infos = [pair.info for pair in pairing.pairs]
    limit = limit_of(origin, infos, full=full)
    reports: list[PairReport] = []
    unread: list[tuple[str, str]] = []
    parts = job.parts([info.elements for info in infos])
    for pair, part in zip(pairing.pairs, parts, strict=True):
        named, shape = part.part(0.0, 1.0, pair.name), (rows_of(pair.info), row_elements(pair.info))
        strips = sample_rows(*shape, limit, strips_of(origin)).strips
        try:
            reports.append(_compare_pair(a, b, pair, strips, named))
        except (UsageError, Cancelled):
            raise  # a missing library would fail every other weight too
        except QtuiError as error:
            unread.append((pair.name, str(error)))
        named.at(1.0)
    if unread and not reports:
        more = f" {len(unread) - 1:,} more weights fail likewise." if len(unread) > 1 else ""
        raise ModelError(f"{unread[0][1]}{more}")
    reports.sort(key=_badness, reverse=True)
    return Comparison(take_census(a), take_census(b), pairing, tuple(reports), tuple(unread))


def _compare_pair(
    a: ModelSource, b: ModelSource, pair: Pair, strips: Sequence[Strip], job: Job
) -> PairReport:
    rows_a, rows_b = open_pair(a, b, pair)
    whole = sum(stop - start for start, stop in strips) == rows_a.shape[0]
    rounds = pair.b.scheme is not None and not pair.a.quantized and len(pair.info.shape) >= 2
    kept: list[Float32] | None = [] if rounds and not whole else None
    job.at(0.0)
    measured = difference(rows_a, rows_b, strips, job.part(0.0, 0.7), kept)
    if measured.identical and pair.a.method in _WIDER:
        # Values of dtypes wider than float32 are equal only if their stored bytes are.
        measured.identical = pair.b.method == pair.a.method and all(
            a.read_rows(pair.a.stored, *strip) == b.read_rows(pair.b.stored, *strip)
            for strip in strips
        )
    if rounds:
        assert pair.b.scheme is not None
        try:
            scheme = Scheme.parse(pair.b.scheme)
            values = rows_a if kept is None else np.concatenate(kept)
            plain = measure(values, scheme, job=job.part(0.7, 1.0))
            return PairReport(pair, measured, str(scheme), plain.relative_mse)
        except UsageError:
            pass  # a scheme that has no coder
    return PairReport(pair, measured)


def _badness(report: PairReport) -> tuple[int, float]:
    """A key that orders weights: first those with values that are not finite, then by relative
    error; identical ones last."""
    measured = report.difference
    if measured.nonfinite:
        return (2, measured.lost)
    if measured.relative_mse is None:
        return (1, math.inf) if measured.mse else (0, 0.0)
    return (1, measured.relative_mse)
