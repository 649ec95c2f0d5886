"""The curve of a step in a few milliseconds, for a setting that is being changed interactively.

Events of repeated layers are not copied. A repeated layer changes the live bytes by the same amount
each time, so its points are drawn again, shifted by that amount.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.devices.device import Device
from qtui_core.memory.devices.outside_torch import cublas_workspace, outside_torch
from qtui_core.memory.estimate import Estimate, estimate_as_run
from qtui_core.memory.plan.run_plan import RunPlan, plan_as_run
from qtui_core.memory.replay.curve import POINTS, Curve, Peaks
from qtui_core.memory.replay.folding import Fold
from qtui_core.memory.replay.record import ALLOCATE, FREE, PHASE, Component, Event, Phase, rounded
from qtui_core.memory.replay.timeline import STACK, Span, by_lifetime
from qtui_core.memory.replay.unfolding import repeated
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.step.run import record_repeated

_PLACE: Final = {component: place for place, component in enumerate(STACK)}
_WORKSPACES: Final = _PLACE[Component.WORKSPACES]


@dataclass(frozen=True)
class QuickCurve:
    """The curve of a step after the first, and the most live bytes in each phase. In bytes of
    tensors, like an estimate's live bytes; `plan` has a value for every option.

    `process_bytes` adds the CUDA context to them. It is less than an estimate's by the allocator's
    cache and by paged states.
    """

    plan: RunPlan
    curve: Curve
    peaks: Peaks
    process_bytes: int


def quick_curve(
    shape: ModelShape, plan: RunPlan, device: Device | None = None, points: int = POINTS
) -> QuickCurve:
    """The curve of a run of `plan`, which has a value for every option, with about `points` points;
    no peak is lost.

    Raises UsageError for a plan that is impossible for this model.
    """
    plan = plan_as_run(shape, plan, device)
    if plan.gpus > 1 or plan.loop == "script":
        # Shards are cut after the layers are copied; a script's first step differs from the others.
        return _of_estimate(estimate_as_run(shape, plan, device, allocator=False))
    workspace = cublas_workspace(plan.torch, device, trains=plan.trains)
    standing = workspace.bytes if workspace.kept else 0

    def read(events: Sequence[Event], folds: Sequence[Fold]) -> _Pen:
        pen = _Pen(standing)
        places = _places(events)
        groups = [
            ([event for section in group for event in section.events], copies)
            for group, copies in repeated(events, folds)
        ]
        total = sum(len(of_group) * (copies + 1) for of_group, copies in groups)
        for of_group, copies in groups:
            pen.draw(of_group, copies, places, max(1, round(points * len(of_group) / total)))
        return pen

    pen = record_repeated(shape, plan, read, names=True)
    curve = pen.curve()
    peaks = Peaks(pen.peaks())
    return QuickCurve(plan, curve, peaks, peaks.bytes + outside_torch(device, plan.groups).bytes)


def _of_estimate(found: Estimate) -> QuickCurve:
    """The same from a whole estimate."""
    curve = found.curve
    drawn = {span.name for span in curve.spans}
    peaks = Peaks({p.name: p.live_bytes for p in found.phases if p.name in drawn})
    return QuickCurve(found.plan, curve, peaks, found.process_bytes)


def _places(events: Sequence[Event]) -> dict[int, tuple[int, int]]:
    """For each buffer, the index of its component in the stack, and its bytes."""
    born: dict[int, tuple[Component | None, str, int]] = {}
    found: dict[int, tuple[int, int]] = {}
    phase = ""
    for event in events:
        kind = event[0]
        if kind == ALLOCATE:
            born[event[1]] = (event[3].component, phase, rounded(event[2]))
        elif kind == FREE:
            component, start, nbytes = born.pop(event[1])
            found[event[1]] = (_PLACE[component or by_lifetime(start, phase)], nbytes)
        elif kind == PHASE:
            phase = str(event[1])
    for buffer, (component, start, nbytes) in born.items():
        found[buffer] = (_PLACE[component or by_lifetime(start, "")], nbytes)
    return found


class _Pen:
    """Draws points: in each range of events the one with the most live bytes, and what is alive
    there."""

    def __init__(self, standing: int) -> None:
        self._now = [0] * len(STACK)
        self._now[_WORKSPACES] = standing
        self._live = standing
        self._number = 0
        self._phase = ""
        self._positions: list[int] = []
        self._points: list[list[int]] = []
        self._starts: list[tuple[str, int]] = []
        self._peaks: dict[str, int] = {}

    def draw(
        self,
        events: Sequence[Event],
        copies: int,
        places: dict[int, tuple[int, int]],
        points: int,
    ) -> None:
        """Draws `events` once in `points` ranges, and then `copies` more times."""
        before, first, start = list(self._now), len(self._points), self._number
        length = max(1, -(-len(events) // points))
        for low in range(0, len(events), length):
            self._stretch(events[low : low + length], places)
        if not copies:
            return
        # Repeated groups lie within one phase.
        gained = [now - then for now, then in zip(self._now, before, strict=True)]
        rise = sum(gained)
        drawn = list(zip(self._positions[first:], self._points[first:], strict=True))
        top = max((sum(point) for _, point in drawn), default=0)
        for copy in range(1, copies + 1):
            for position, point in drawn:
                shifted = [value + copy * gain for value, gain in zip(point, gained, strict=True)]
                self._positions.append(position + copy * len(events))
                self._points.append(shifted)
        self._see(top + copies * max(0, rise))
        self._now = [now + copies * gain for now, gain in zip(self._now, gained, strict=True)]
        self._live += copies * rise
        self._number = start + (copies + 1) * len(events)

    def _stretch(self, events: Sequence[Event], places: dict[int, tuple[int, int]]) -> None:
        now = self._now
        best, at, top = list(now), self._number, self._live
        for event in events:
            kind = event[0]
            if kind == ALLOCATE:
                place, nbytes = places[event[1]]
                now[place] += nbytes
                self._live += nbytes
                if self._live > top:
                    best, at, top = list(now), self._number, self._live
            elif kind == FREE:
                place, nbytes = places[event[1]]
                now[place] -= nbytes
                self._live -= nbytes
            elif kind == PHASE:
                self._put(at, best, top)
                self._enter(str(event[1]))
                best, at, top = list(now), self._number, self._live
            self._number += 1
        self._put(at, best, top)

    def _put(self, position: int, point: list[int], live: int) -> None:
        self._see(live)
        if not self._positions or self._positions[-1] < position:
            self._positions.append(position)
            self._points.append(point)

    def _see(self, live: int) -> None:
        if self._phase:
            self._peaks[self._phase] = max(live, self._peaks.get(self._phase, 0))

    def _enter(self, phase: str) -> None:
        if phase == Phase.FORWARD and self._phase not in (Phase.FORWARD, Phase.BACKWARD):
            # Drop what came before this step.
            self._positions, self._points, self._starts, self._peaks = [], [], [], {}
        self._phase = phase
        self._starts.append((phase, self._number))

    def curve(self) -> Curve:
        rows = list(zip(*self._points, strict=True))
        used = [place for place, row in enumerate(rows) if any(row)]
        stops = [*(start for _, start in self._starts[1:]), self._number]
        return Curve(
            tuple(self._positions),
            tuple(STACK[place] for place in used),
            tuple(rows[place] for place in used),
            tuple(
                Span(name, start, stop)
                for (name, start), stop in zip(self._starts, stops, strict=True)
            ),
        )

    def peaks(self) -> dict[str, int]:
        return self._peaks
