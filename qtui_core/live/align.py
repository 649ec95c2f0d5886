"""Where a moment of a run lies on the predicted curve of a step.

The curve counts events, a run counts seconds; both go through the same phases. Within a phase, a
share of its seconds is taken to be the same share of its events.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from qtui_core.dataclass import dataclass
from qtui_core.live.header import PredictedCurve
from qtui_core.live.series import Moment
from qtui_core.live.state import PhaseSpan, RunState


@dataclass(frozen=True)
class PlacedMoment:
    """A moment and its position on the axis of a curve's events."""

    position: float
    moment: Moment


def place(curve: PredictedCurve, phase: str, turn: int, share: float) -> float | None:
    """The position of a share, 0 to 1, of a phase that occurs for the `turn`-th time (from 0) in
    its step; None if the curve has no such phase. A turn beyond the last one counts as the last."""
    return _within(_by_phase(curve).get(phase, ()), turn, share)


def _by_phase(curve: PredictedCurve) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for name, start, stop in curve.spans:
        found.setdefault(name, []).append((start, stop))
    return found


def _within(spans: Sequence[tuple[int, int]], turn: int, share: float) -> float | None:
    if not spans:
        return None
    start, stop = spans[min(turn, len(spans) - 1)]
    return start + share * (stop - start)


def column(curve: PredictedCurve, position: float) -> float:
    """A position on the axis as an index into the points of the curve, which may be a fraction."""
    points = curve.positions
    after = bisect_right(points, position)
    if after == 0 or after == len(points):
        return float(max(0, after - 1))
    low, high = points[after - 1], points[after]
    return after - 1 + (position - low) / (high - low)


def aligned(
    state: RunState, curve: PredictedCurve, steps: range | None = None
) -> tuple[PlacedMoment, ...]:
    """The recent moments that lie on the curve, in the order of time; with `steps`, only those of
    these steps. A phase that is still running is assumed to take as long as last time; if it has
    never ended, its moments are placed in its middle."""
    usual = {
        (span.phase, span.turn): span.ended - span.begun
        for span in state.spans
        if span.ended is not None
    }
    begun = attrgetter("begun")
    places = _by_phase(curve)
    found = []
    for moment in state.recent:
        if moment.step == 0 or (steps is not None and moment.step not in steps):
            continue
        span = _span_of(state.spans, moment, bisect_right(state.spans, moment.seconds, key=begun))
        if span is None:
            continue
        share = _share(span, moment.seconds, usual.get((span.phase, span.turn)))
        position = _within(places.get(span.phase, ()), span.turn, share)
        if position is not None:
            found.append(PlacedMoment(position, moment))
    return tuple(found)


def _span_of(spans: Sequence[PhaseSpan], moment: Moment, before: int) -> PhaseSpan | None:
    """The span that a moment belongs to, among the first `before`. If one phase ends exactly when
    the next begins, the name of the phase decides."""
    for span in reversed(spans[:before]):
        if (span.step, span.phase) == (moment.step, moment.phase):
            return span
        if span.step < moment.step:
            return None
    return None


def _share(span: PhaseSpan, seconds: float, usual: float | None) -> float:
    lasts = usual if span.ended is None else span.ended - span.begun
    if not lasts:
        return 0.5 if span.ended is None else 1.0
    return min(1.0, max(0.0, (seconds - span.begun) / lasts))
