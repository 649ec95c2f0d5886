"""The reports of a run as lines, and what is known of it after each: the same path for a live run
and a replay.

state = RunState()
for event in stream:
    state = after(state, event)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, takewhile
from statistics import median
from typing import Any, Final, Literal

from qtui_core.dataclass import dataclass
from qtui_core.live.snapshot import (
    SCHEMA_VERSION,
    AdaptersCompared,
    End,
    Fault,
    LogMessage,
    PhaseBegun,
    PhaseEnded,
    Predicted,
    PredictedCurve,
    RecordingHeader,
    Sample,
    Snapshot,
    State,
    StepRanges,
    StepTaken,
)
from qtui_core.memory.replay.record import Component, Phase
from qtui_core.recorded_lines import LineKinds

RunEvent = RecordingHeader | Snapshot
#: "waiting" is before the header, "starting" before the first step.
Status = Literal["waiting", "starting", "running", "paused", "done", "stopped", "failed"]

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
#: The most moments of a series: more than a wide terminal has dots.
MOST: Final = 1024
#: Components that do not stay between two steps and are not counted there.
_PASSING = (Component.GRADIENTS.value, Component.INPUTS.value, Component.CACHE.value)


@dataclass(frozen=True)
class RunRecording:
    """A recording of a run as it was read.

    Attributes:
        header: how it begins.
        snapshots: in order.
        complaint: a sentence on lines that could not be read, or on an end that is missing;
            empty where all is well.
    """

    header: RecordingHeader
    snapshots: tuple[Snapshot, ...]
    complaint: str = ""

    def __iter__(self) -> Iterator[RunEvent]:
        """All reports, the header first."""
        yield self.header
        yield from self.snapshots


def _wrong(event: RunEvent) -> str:
    """A sentence on what in a report contradicts itself; empty where nothing does."""
    if isinstance(event, RecordingHeader):
        right = event.predicted is None or _can_be_drawn(event.predicted.curve)
        return "" if right else "Its predicted curve contradicts itself."
    if math.isfinite(event.seconds) and event.seconds >= 0:
        return ""
    return f"Its time of {event.seconds} seconds is not a finite number from 0 on."


def _can_be_drawn(curve: PredictedCurve) -> bool:
    """Whether there is a row of bytes for each component and a value for each position, positions
    rise, and phases do not overlap."""
    edges = [0, *(edge for _, start, stop in curve.spans for edge in (start, stop))]
    return (
        len(curve.bytes) == len(curve.components)
        and all(len(row) == len(curve.positions) for row in curve.bytes)
        and all(value >= 0 for row in curve.bytes for value in row)
        and all(before < after for before, after in pairwise(curve.positions))
        and all(before <= after for before, after in pairwise(edges))
    )


RUN_LINES: Final = LineKinds[RunEvent, RunRecording](
    {
        "header": RecordingHeader,
        "phase begun": PhaseBegun,
        "phase ended": PhaseEnded,
        "sample": Sample,
        "step": StepTaken,
        "adapters": AdaptersCompared,
        "ranges": StepRanges,
        "said": LogMessage,
        "fault": Fault,
        "state": State,
        "end": End,
    },
    SCHEMA_VERSION,
    "a run",
    RecordingHeader,
    "a header",
    RunRecording,
    over=lambda event: isinstance(event, End),
    wrong=_wrong,
)
KINDS: Final = RUN_LINES.kinds
to_line: Final = RUN_LINES.to_line
from_line: Final = RUN_LINES.from_line
read_recording: Final = RUN_LINES.read
parse_recording: Final = RUN_LINES.parse


@dataclass(frozen=True)
class Moment:
    """The levels at a moment, in bytes; None if unknown.

    Attributes:
        seconds: since the run began.
        step, phase: the current ones.
        allocated, reserved: of the allocator, or of live tensors.
        process, device: of this process, and of all processes on the device, according to the
            driver.
    """

    seconds: float
    step: int
    phase: str
    allocated: int | None = None
    reserved: int | None = None
    process: int | None = None
    device: int | None = None


@dataclass(frozen=True)
class Series:
    """The moments of a whole run, whose number is bounded however long it is. Each stands for
    `each` added moments: it has their largest values and the time of the first. The last one can
    include `room` more."""

    moments: tuple[Moment, ...] = ()
    each: int = 1
    room: int = 0

    def add(self, moment: Moment) -> Series:
        """The series with one more moment. If there are too many, every two of them become one
        with the larger values, so that no peak is lost."""
        moments, each = self.moments, self.each
        if self.room:
            return Series((*moments[:-1], _larger(moments[-1], moment)), each, self.room - 1)
        if len(moments) >= MOST:
            moments, each = tuple(map(_larger, moments[::2], moments[1::2])), 2 * each
        return Series((*moments, moment), each, each - 1)


def _larger(first: Moment, second: Moment) -> Moment:
    names = ("allocated", "reserved", "process", "device")
    levels: dict[str, Any] = {n: _most(getattr(first, n), getattr(second, n)) for n in names}
    return replace(first, **levels)


def _most(*numbers: int | None) -> int | None:
    """The largest of the numbers that are known; None if none is."""
    return max((number for number in numbers if number is not None), default=None)


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
        seconds: of the last report.
        step, phase: the current ones; step 0 is before the first.
        spans: phases as they happened, the last `SPANS`.
        phases: the measurements of each phase, in the order in which they first ended.
        recent: the last `RECENT` samples and marks, in order.
        history: the same for the whole run, thinned out.
        sample, adapters, ranges: the last ones.
        most_reserved, most_process, most_device: the largest in samples and marks, without those of
            COMPARE.
        log: the last lines, including faults.
        fault: the one that ended the run, otherwise the last one.
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
    def predicted(self) -> Predicted | None:
        return None if self.header is None else self.header.predicted

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
        return next((entry for entry in self.phases if entry.name == phase), None)


def after(state: RunState, event: RunEvent) -> RunState:
    """The state after one more report. A header begins a new run."""
    if isinstance(event, RecordingHeader):
        return RunState(header=event, status="starting")
    return replace(state, seconds=max(state.seconds, event.seconds), **_changes(state, event))


def _changes(state: RunState, event: Snapshot) -> dict[str, Any]:
    """Fields of a state with their new values."""
    match event:
        case PhaseBegun():
            return _phase_begun(state, event)
        case PhaseEnded():
            return {
                **_levels(state, event, event.peak_reserved_bytes),
                "spans": _closed(state.spans, event.seconds),
                "phases": _with_mark(state.phases, event),
            }
        case Sample():
            return {**_levels(state, event), "sample": event}
        case StepTaken():
            return {"steps": (*state.steps, event)}
        case AdaptersCompared():
            return {"adapters": event}
        case StepRanges():
            return {"ranges": event}
        case LogMessage():
            return {"log": (*state.log, event)[-LOG:]}
        case Fault():
            worse = state.fault is None or event.fatal or not state.fault.fatal
            return {
                "log": (*state.log, LogMessage(event.seconds, event.text))[-LOG:],
                "fault": event if worse else state.fault,
                "faults": (*state.faults, event)[-FAULTS:],
            }
        case State():
            known = event.state in ("running", "paused")
            return {"status": event.state if known else state.status}
        case End():
            known = event.reason in ("done", "stopped")
            return {"status": event.reason if known else "failed", "end": event}


def _phase_begun(state: RunState, event: PhaseBegun) -> dict[str, Any]:
    spans = _closed(state.spans, event.seconds)
    of_step = takewhile(lambda span: span.step == event.step, reversed(spans))
    turn = sum(span.phase == event.phase for span in of_step)
    begins = event.step and state.status == "starting"
    return {
        "status": "running" if begins else state.status,
        "step": event.step,
        "phase": event.phase,
        "spans": (*spans, PhaseSpan(event.step, event.phase, turn, event.seconds))[-SPANS:],
    }


def _levels(
    state: RunState, event: Sample | PhaseEnded, peak_reserved: int | None = None
) -> dict[str, Any]:
    """Adds the levels of a moment to the series."""
    process, device = event.process_bytes, event.device_used_bytes
    levels = (event.allocated_bytes, event.reserved_bytes, process, device)
    moment = Moment(event.seconds, event.step, event.phase, *levels)
    changes = {"recent": (*state.recent, moment)[-RECENT:], "history": state.history.add(moment)}
    if event.phase == COMPARE:
        return changes
    return {
        **changes,
        "most_reserved": _most(state.most_reserved, event.reserved_bytes, peak_reserved),
        "most_process": _most(state.most_process, process),
        "most_device": _most(state.most_device, device),
    }


def _closed(spans: tuple[PhaseSpan, ...], seconds: float) -> tuple[PhaseSpan, ...]:
    """The spans, with the last one ended."""
    if not spans or spans[-1].ended is not None:
        return spans
    return (*spans[:-1], replace(spans[-1], ended=seconds))


def _with_mark(phases: tuple[PhaseMeasured, ...], event: PhaseEnded) -> tuple[PhaseMeasured, ...]:
    for index, phase in enumerate(phases):
        if phase.name == event.phase:
            higher = event.peak_allocated_bytes >= phase.most.peak_allocated_bytes
            changed = replace(phase, last=event, most=event if higher else phase.most)
            return (*phases[:index], changed, *phases[index + 1 :])
    return (*phases, PhaseMeasured(event.phase, event, event, event))


@dataclass(frozen=True)
class Measured:
    """The measurements of a run; None if unknown.

    Attributes:
        counted: "allocator", or "tensors" if bytes of live tensors were counted instead.
        peak: the mark of the phase in which the most was allocated.
        resident_bytes: between the last two steps, without gradients and inputs.
        peak_reserved_bytes, process_bytes, device_used_bytes: the peaks; on a CPU the process is
            its resident set.
        context_bytes: the process beyond what its allocator reserved, at its largest.
        early_context_bytes: the same before the first optimizer step.
        step_seconds: the median, of all steps but the first if there are more.
        tokens_per_second: at the median step.
        losses: one for each step.
    """

    counted: str = "allocator"
    peak: PhaseEnded | None = None
    resident_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    process_bytes: int | None = None
    device_used_bytes: int | None = None
    context_bytes: int | None = None
    early_context_bytes: int | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    losses: tuple[float | None, ...] = ()

    PRINTED = (
        "counted", "resident_bytes", "peak_allocated_bytes",
        ("peak_phase", lambda figures: figures.peak and figures.peak.phase),
        "peak_reserved_bytes", "process_bytes", "device_used_bytes", "context_bytes",
        "step_seconds", "tokens_per_second", ("loss", "losses"),
    )  # fmt: skip

    @property
    def peak_allocated_bytes(self) -> int | None:
        return None if self.peak is None else self.peak.peak_allocated_bytes


def measured(state: RunState) -> Measured:
    """The figures of a run so far."""
    phases = [phase for phase in state.phases if phase.name != COMPARE]
    marks = [mark for phase in phases for mark in (phase.first, phase.last, phase.most)]
    # Before the first optimizer state was created.
    early = [m for m in marks if m.step <= 1 and m.phase not in (Phase.OPTIMIZER, Phase.BETWEEN)]
    between = state.measured(Phase.BETWEEN)
    resident = None
    if between is not None:
        passing = sum(between.last.held.get(name, 0) for name in _PASSING)
        resident = between.last.allocated_bytes - passing
    steps = state.steps[1:] or state.steps
    seconds = median(step.step_seconds for step in steps) if steps else None
    return Measured(
        counted=state.counted,
        peak=max((p.most for p in phases), key=lambda m: m.peak_allocated_bytes, default=None),
        resident_bytes=resident,
        peak_reserved_bytes=state.most_reserved,
        process_bytes=state.most_process,
        device_used_bytes=state.most_device,
        context_bytes=_outside(marks),
        early_context_bytes=_outside(early),
        step_seconds=seconds,
        tokens_per_second=steps[-1].tokens / seconds if seconds else None,
        losses=state.losses,
    )


def _outside(marks: list[PhaseEnded]) -> int | None:
    """Process bytes minus reserved bytes at the mark with the largest process; None if no mark has
    both."""
    known = [
        (mark.process_bytes, mark.process_bytes - mark.reserved_bytes)
        for mark in marks
        if mark.process_bytes is not None and mark.reserved_bytes is not None
    ]
    return max(known)[1] if known else None
