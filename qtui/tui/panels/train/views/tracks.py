"""Makes the lines of a run's picture from its state."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from qtui.report.pictures.cells import ACROSS
from qtui.screen.curve.dots import Stroke, Track
from qtui.tui.panels.train.views.run_picture import Overlay, Place
from qtui_core.live.compare import aligned
from qtui_core.live.snapshot import PredictedCurve
from qtui_core.live.state import Moment, RunState
from qtui_core.memory.replay.timeline import Span, StackedCurve, stacked

Levels = tuple[str, Stroke, Callable[[Moment], int | None]]

#: The lines, from the outermost level inwards, in which order they are drawn.
ON_GPU: Sequence[Levels] = (
    ("device", "dotted", lambda moment: moment.device),
    ("reserved", "thin", lambda moment: moment.reserved),
    ("allocated", "thick", lambda moment: moment.allocated),
)
ON_CPU: Sequence[Levels] = (("tensors", "thick", lambda moment: moment.allocated),)


@lru_cache(maxsize=4)
def stacked_prediction(curve: PredictedCurve) -> StackedCurve:
    """A predicted curve with its components summed to the parts that are drawn."""
    spans = (Span(*span) for span in curve.spans)
    return stacked(curve.positions, curve.components, curve.bytes, spans)


def levels_of(state: RunState) -> Sequence[Levels]:
    """The lines that a run has."""
    return ON_CPU if state.counted == "tensors" else ON_GPU


def overlay(
    state: RunState, curve: PredictedCurve, places: Sequence[Place], points: int
) -> Overlay:
    """The lines over the curve, from the latest steps. The first step is left out if there are
    others, as it has no optimizer states yet."""
    placed = aligned(_with_step_before(state), curve) if places else ()
    later = [pair for pair in placed if pair[1].step > 1]
    chosen = later or placed
    columns = _points_of([position for position, _ in chosen], curve, places, points)
    moments = [moment for _, moment in chosen]
    tracks, latest = [], []
    now = state.recent[-1] if state.recent else None
    for name, stroke, level in levels_of(state):
        tracks.append(Track(name, stroke, _most(columns, map(level, moments), points)))
        latest.append(None if now is None else level(now))
    tracks.insert(0, Track("phase peak", "level", _peaks(state, places, points)))
    latest.insert(0, None)
    kept = [
        (track, value)
        for track, value in zip(tracks, latest, strict=True)
        if any(each is not None for each in track.values)
    ]
    failed = state.fault.phase if state.fault is not None and state.fault.fatal else ""
    return Overlay(
        tuple(track for track, _ in kept),
        tuple(value for _, value in kept),
        "" if state.over else state.phase,
        failed,
    )


def _with_step_before(state: RunState) -> RunState:
    """The state with samples of the previous step added from the history, because the latest
    samples may cover only a part of a slow step."""
    if not state.recent:
        return state
    first = state.recent[0].seconds
    older = [
        moment
        for moment in state.history.moments
        if moment.seconds < first and moment.step >= state.step - 1
    ]
    return replace(state, recent=(*older, *state.recent))


def _points_of(
    positions: Sequence[float], curve: PredictedCurve, places: Sequence[Place], points: int
) -> list[int]:
    """The points of the picture for positions on the curve; columns are proportional to events."""
    if not positions:
        return []
    stops = [stop for _, _, stop in curve.spans]
    spans = [
        (start, ACROSS * (place.stop - place.start) / max(1, stop - start), ACROSS * place.start)
        for (_, start, stop), place in zip(curve.spans, places, strict=True)
    ]
    found = []
    for position in positions:
        start, wide, first = spans[min(bisect_left(stops, position), len(spans) - 1)]
        at = int(first + (position - start) * wide)
        found.append(max(0, min(points - 1, at)))
    return found


def _most(
    columns: Sequence[int], values: Iterable[int | None], points: int
) -> tuple[int | None, ...]:
    """The largest value at each point; None if nothing was measured there."""
    found: list[int | None] = [None] * points
    for at, value in zip(columns, values, strict=True):
        before = found[at]
        if value is not None and (before is None or value > before):
            found[at] = value
    return tuple(found)


def _peaks(state: RunState, places: Sequence[Place], points: int) -> tuple[int | None, ...]:
    """The latest exact peak of each phase, over all its columns."""
    found: list[int | None] = [None] * points
    for place in places:
        measured = state.measured(place.phase)
        if measured is not None:
            peak = measured.last.peak_allocated_bytes
            for at in range(ACROSS * place.start, min(points, ACROSS * place.stop)):
                found[at] = peak
    return tuple(found)
