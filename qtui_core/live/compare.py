"""Compares the estimate with the measurements, by phase and by component.

All differences have the same sign: measured minus estimated, positive if the run took more. This
includes the parts of a gap (qtui_core.live.gap), the tables, the panels and the key `error` of
JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.live.components import at_end, at_peak, in_named_components, named
from qtui_core.live.header import Predicted, PredictedPhase
from qtui_core.live.recorded_plan import plan_of
from qtui_core.live.snapshot import PhaseEnded
from qtui_core.live.state import COMPARE, IMPORT, QUANTIZE, RunState
from qtui_core.memory.replay.record import Phase

#: All phases a run may have, in order.
ORDER: Final = (
    IMPORT,
    Phase.LOAD.value,
    QUANTIZE,
    *(phase.value for phase in list(Phase)[1:]),
    COMPARE,
)


@dataclass(frozen=True)
class PhaseRow:
    """The most bytes allocated in a phase, over all steps; None if the phase was not estimated, or
    not measured."""

    name: str
    estimated: int | None
    measured: int | None

    PRINTED = (
        "name",
        ("estimated_bytes", "estimated"),
        ("measured_bytes", "measured"),
        ("error", "gap"),
    )

    @property
    def gap(self) -> float | None:
        """Measured minus estimated, as a share of the measured bytes; None if one is unknown."""
        return gap_share(self.estimated, self.measured)


@dataclass(frozen=True)
class ComponentRow:
    """The bytes of a component in a phase. The last row of a phase is the rest, which belongs to no
    named component."""

    name: str
    estimated: int
    measured: int

    PRINTED = ("name", ("estimated_bytes", "estimated"), ("measured_bytes", "measured"))

    @property
    def gap(self) -> float | None:
        """As `PhaseRow.gap`."""
        return gap_share(self.estimated, self.measured)


def gap_share(estimated: int | None, measured: int | None) -> float | None:
    """Measured minus estimated, as a share of the measured bytes; None if one is unknown."""
    if estimated is None or not measured:
        return None
    return (measured - estimated) / measured


def by_phase(state: RunState) -> tuple[PhaseRow, ...]:
    """All phases that were estimated or measured, in order.

    The estimate loads weights as they are stored, quantized or not. A run may quantize them in a
    separate phase, which then counts as part of the load.
    """
    predicted = state.header.predicted if state.header is not None else None
    estimated = {p.name: p.allocated_bytes for p in predicted.phases} if predicted else {}
    most = {p.name: p.most.peak_allocated_bytes for p in state.phases}
    if Phase.LOAD in estimated and QUANTIZE in most:
        most[Phase.LOAD.value] = max(most.pop(QUANTIZE), most.get(Phase.LOAD, 0))
    known = dict.fromkeys((*ORDER, *estimated, *most))
    return tuple(
        PhaseRow(name, estimated.get(name), most.get(name))
        for name in known
        if name in estimated or name in most
    )


def by_component(state: RunState, phase: str, *, peak: bool = False) -> tuple[ComponentRow, ...]:
    """What a phase held at its last end or, with `peak`, at its peak over all steps, the largest
    component first. Empty unless the phase was both estimated and measured. The rows of each side
    add up to its level. The load is compared as in `by_phase`."""
    mine = _predicted(state.header.predicted if state.header is not None else None, phase)
    mark = _mark(state, phase, peak=peak)
    if mine is None or mark is None:
        return ()
    if peak:
        expected = in_named_components(mark.peak_held, mine.peak_held)
        apart, rest = at_peak(mark, expected)
        return _rows(apart, rest, mark.peak_allocated_bytes, expected, mine.allocated_bytes)
    expected = in_named_components(mark.held, mine.held)
    apart, rest = at_end(mark, expected)
    return _rows(apart, rest, mark.allocated_bytes, expected, sum(expected.values()))


def _mark(state: RunState, phase: str, *, peak: bool) -> PhaseEnded | None:
    """The last mark of a phase or, with `peak`, the one with the highest peak. For the load it is
    the mark of the load or of the quantization after it, whichever holds more."""
    names = (phase, QUANTIZE) if phase == Phase.LOAD else (phase,)
    found = [measured for name in names if (measured := state.measured(name)) is not None]
    marks = [measured.most if peak else measured.last for measured in found]
    return max(marks, key=lambda mark: mark.peak_allocated_bytes, default=None)


def _rows(
    apart: Mapping[str, int], rest: str, level: int, expected: Mapping[str, int], whole: int
) -> tuple[ComponentRow, ...]:
    rows = [ComponentRow(named(n), expected.get(n, 0), nbytes) for n, nbytes in apart.items()]
    rows = [row for row in rows if row.estimated or row.measured]
    rows.sort(key=lambda row: -max(row.estimated, row.measured))
    left = ComponentRow(
        rest,
        whole - sum(row.estimated for row in rows),
        level - sum(row.measured for row in rows),
    )
    return (*rows, left) if left.estimated or left.measured else tuple(rows)


def _predicted(predicted: Predicted | None, name: str) -> PredictedPhase | None:
    phases = predicted.phases if predicted is not None else ()
    return next((phase for phase in phases if phase.name == name), None)


def steps_needed(state: RunState) -> int:
    """How many whole steps a run takes before it is compared with its estimate. During most of the
    first training step the optimizer has no states yet, and the estimate counts them."""
    return 2 if state.header is not None and plan_of(state.header.plan).trains else 1


def too_early(state: RunState) -> bool:
    """Whether there is an estimate but too little of the run to compare with it. A step in which
    the run was stopped or failed does not count, because it was not measured completely."""
    predicted = state.header.predicted if state.header is not None else None
    return predicted is not None and len(state.steps) < steps_needed(state)
