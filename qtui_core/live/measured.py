"""The figures of a run: one number for each level, from all its reports."""

from __future__ import annotations

from statistics import median

from qtui_core.dataclass import dataclass
from qtui_core.live.snapshot import PhaseEnded
from qtui_core.live.state import COMPARE, RunState
from qtui_core.memory.replay.record import Component, Phase

#: Components that do not stay between two steps and are not counted there.
_PASSING = (Component.GRADIENTS.value, Component.INPUTS.value, Component.CACHE.value)


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
