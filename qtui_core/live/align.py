"""Where a moment of a run lies on the predicted curve of a step.

The curve counts events, a run counts seconds; both go through the same phases. Within a phase, a
share of its seconds is taken to be the same share of its events.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from qtui_core.live.snapshot import PredictedCurve
from qtui_core.live.state import Moment, PhaseSpan, RunState


def aligned(state: RunState, curve: PredictedCurve) -> tuple[tuple[float, Moment], ...]:
    """The recent moments that lie on the curve, in the order of time, each after its position on
    the axis of the curve's events. A phase that is still running is assumed to take as long as last
    time; if it has never ended, its moments are placed in its middle. A phase that occurs more
    often in a step than on the curve is placed at its last occurrence."""
    usual = {
        (span.phase, span.turn): span.ended - span.begun
        for span in state.spans
        if span.ended is not None
    }
    occurrences: dict[str, list[tuple[int, int]]] = {}
    for name, start, stop in curve.spans:
        occurrences.setdefault(name, []).append((start, stop))
    begun = attrgetter("begun")
    placed = []
    for moment in state.recent:
        before = bisect_right(state.spans, moment.seconds, key=begun)
        span = _span_of(state.spans[:before], moment) if moment.step else None
        if span is not None and (places := occurrences.get(span.phase)):
            start, stop = places[min(span.turn, len(places) - 1)]
            share = _share(span, moment.seconds, usual.get((span.phase, span.turn)))
            placed.append((start + share * (stop - start), moment))
    return tuple(placed)


def _span_of(spans: Sequence[PhaseSpan], moment: Moment) -> PhaseSpan | None:
    """The last of the spans that a moment belongs to. If one phase ends exactly when the next
    begins, the name of the phase decides."""
    for span in reversed(spans):
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
