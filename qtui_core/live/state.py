"""What is known of a run after each of its reports: the same path for a live run and a replay.

state = RunState()
for event in stream:
    state = after(state, event)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import takewhile
from typing import Any, Final, Literal

from qtui_core.dataclass import dataclass
from qtui_core.live.header import RecordingHeader
from qtui_core.live.lines import RunEvent
from qtui_core.live.series import Moment, Series, add, larger
from qtui_core.live.snapshot import (
    AdaptersCompared,
    End,
    Fault,
    LogMessage,
    PhaseBegun,
    PhaseEnded,
    Sample,
    State,
    StepRanges,
    StepTaken,
)

#: "waiting" is before the header, "starting" before the first step.
Status = Literal["waiting", "starting", "running", "paused", "done", "stopped", "failed"]
_CONTROLLED: Final[Mapping[str, Status]] = {"running": "running", "paused": "paused"}
_ENDED: Final[Mapping[str, Status]] = {"done": "done", "stopped": "stopped", "failed": "failed"}

#: Phases of a run that an estimate does not have (qtui_core.memory.replay.record.Phase has the
#: others). The comparison of adapters is not part of a step, and its memory is not counted.
IMPORT: Final = "import"
QUANTIZE: Final = "quantize"
COMPARE: Final = "compare"

#: The number of recent moments that are kept: half a minute of samples, and the marks among them.
RECENT: Final = 600
#: The number of phase spans that are kept, those of the last steps.
SPANS: Final = 256
LOG: Final = 200
FAULTS: Final = 50


@dataclass(frozen=True)
class PhaseSpan:
    """A phase as it happened.

    Attributes:
        step: 0 before the first.
        turn: the occurrence of the phase in its step, from 0.
        begun, ended: seconds; `ended` is None while it lasts, or if the run ended in it.
    """

    step: int
    phase: str
    turn: int
    begun: float
    ended: float | None = None


@dataclass(frozen=True)
class PhaseMeasured:
    """The marks of a phase over all steps so far: at its first end, at its last, and at its highest
    peak."""

    name: str
    first: PhaseEnded
    last: PhaseEnded
    most: PhaseEnded


@dataclass(frozen=True)
class RunState:
    """A run, as far as it has reported.

    Attributes:
        header: None before it was reported.
        status: "done", "stopped" and "failed" are ends.
        seconds: of the last report.
        step, phase: the current ones; step 0 is before the first.
        spans: phases as they happened, the last `SPANS`.
        phases: the measurements of each phase, in the order in which they first ended.
        recent: the last `RECENT` samples and marks, in order.
        history: the same for the whole run, thinned out.
        sample: the last one.
        steps: all steps taken.
        most_reserved, most_process, most_device: the largest in samples and marks, without those of
            COMPARE.
        adapters: the last comparison.
        ranges: where the numbers of a step lay, when last requested.
        log: the last lines, including faults.
        fault: the one that ended the run, otherwise the last one.
        faults: the last of them.
        end: None while the run continues.
    """

    header: RecordingHeader | None = None
    status: Status = "waiting"
    seconds: float = 0.0
    step: int = 0
    phase: str = ""
    spans: tuple[PhaseSpan, ...] = ()
    phases: tuple[PhaseMeasured, ...] = ()
    recent: tuple[Moment, ...] = ()
    history: Series = Series()
    sample: Sample | None = None
    steps: tuple[StepTaken, ...] = ()
    most_reserved: int | None = None
    most_process: int | None = None
    most_device: int | None = None
    adapters: AdaptersCompared | None = None
    ranges: StepRanges | None = None
    log: tuple[LogMessage, ...] = ()
    fault: Fault | None = None
    faults: tuple[Fault, ...] = ()
    end: End | None = None

    @property
    def over(self) -> bool:
        return self.end is not None

    @property
    def losses(self) -> tuple[float | None, ...]:
        """The loss of each step; None in inference, NaN if it was not a number."""
        return tuple(step.loss for step in self.steps)

    @property
    def counted(self) -> str:
        """What allocated bytes are counted by: "allocator", or "tensors" on a CPU. Before the first
        mark this follows from the device."""
        if self.phases:
            return self.phases[-1].last.counted
        on_cpu = self.header is not None and self.header.device.kind == "cpu"
        return "tensors" if on_cpu else "allocator"

    def measured(self, phase: str) -> PhaseMeasured | None:
        """The measurements of a phase; None before it first ended."""
        return next((found for found in self.phases if found.name == phase), None)


#: Fields of a state with their new values.
Changes = dict[str, Any]


def after(state: RunState, event: RunEvent) -> RunState:
    """The state after one more report. A header begins a new run."""
    if isinstance(event, RecordingHeader):
        return RunState(header=event, status="starting")
    changes = _CHANGES[type(event)](state, event)
    return replace(state, seconds=max(state.seconds, event.seconds), **changes)


def _phase_begun(state: RunState, event: PhaseBegun) -> Changes:
    spans = _closed(state.spans, event.seconds)
    of_step = takewhile(lambda span: span.step == event.step, reversed(spans))
    turn = sum(span.phase == event.phase for span in of_step)
    span = PhaseSpan(event.step, event.phase, turn, event.seconds)
    begins = event.step and state.status == "starting"
    return {
        "status": "running" if begins else state.status,
        "step": event.step,
        "phase": event.phase,
        "spans": (*spans, span)[-SPANS:],
    }


def _phase_ended(state: RunState, event: PhaseEnded) -> Changes:
    changes = _moment(state, event)
    reserved = _most(changes["most_reserved"], event.phase, event.peak_reserved_bytes)
    return {
        **changes,
        "spans": _closed(state.spans, event.seconds),
        "phases": _with_mark(state.phases, event),
        "most_reserved": reserved,
    }


def _sample(state: RunState, event: Sample) -> Changes:
    return {**_moment(state, event), "sample": event}


def _moment(state: RunState, event: Sample | PhaseEnded) -> Changes:
    """Adds the levels of a moment to the series."""
    moment = Moment(
        event.seconds,
        event.step,
        event.phase,
        event.allocated_bytes,
        event.reserved_bytes,
        event.process_bytes,
        event.device_used_bytes,
    )
    return {
        "recent": (*state.recent, moment)[-RECENT:],
        "history": add(state.history, moment),
        "most_reserved": _most(state.most_reserved, event.phase, event.reserved_bytes),
        "most_process": _most(state.most_process, event.phase, event.process_bytes),
        "most_device": _most(state.most_device, event.phase, event.device_used_bytes),
    }


def _most(before: int | None, phase: str, nbytes: int | None) -> int | None:
    return before if phase == COMPARE else larger(before, nbytes)


def _closed(spans: tuple[PhaseSpan, ...], seconds: float) -> tuple[PhaseSpan, ...]:
    """The spans, with the last one ended."""
    if not spans or spans[-1].ended is not None:
        return spans
    return (*spans[:-1], replace(spans[-1], ended=seconds))


def _with_mark(phases: tuple[PhaseMeasured, ...], event: PhaseEnded) -> tuple[PhaseMeasured, ...]:
    for index, found in enumerate(phases):
        if found.name == event.phase:
            higher = event.peak_allocated_bytes >= found.most.peak_allocated_bytes
            changed = replace(found, last=event, most=event if higher else found.most)
            return (*phases[:index], changed, *phases[index + 1 :])
    return (*phases, PhaseMeasured(event.phase, event, event, event))


def _step_taken(state: RunState, event: StepTaken) -> Changes:
    return {"steps": (*state.steps, event)}


def _adapters_compared(state: RunState, event: AdaptersCompared) -> Changes:
    return {"adapters": event}


def _ranges_seen(state: RunState, event: StepRanges) -> Changes:
    return {"ranges": event}


def _said(state: RunState, event: LogMessage) -> Changes:
    return {"log": (*state.log, event)[-LOG:]}


def _fault(state: RunState, event: Fault) -> Changes:
    worse = state.fault is None or event.fatal or not state.fault.fatal
    return {
        **_said(state, LogMessage(event.seconds, event.text)),
        "fault": event if worse else state.fault,
        "faults": (*state.faults, event)[-FAULTS:],
    }


def _state(state: RunState, event: State) -> Changes:
    return {"status": _CONTROLLED.get(event.state, state.status)}


def _end(state: RunState, event: End) -> Changes:
    return {"status": _ENDED.get(event.reason, "failed"), "end": event}


_CHANGES: Final[Mapping[type, Callable[[RunState, Any], Changes]]] = {
    PhaseBegun: _phase_begun,
    PhaseEnded: _phase_ended,
    Sample: _sample,
    StepTaken: _step_taken,
    AdaptersCompared: _adapters_compared,
    StepRanges: _ranges_seen,
    LogMessage: _said,
    Fault: _fault,
    State: _state,
    End: _end,
}
