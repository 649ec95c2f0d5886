"""The sentences that say how a run ended, how near its estimate was, and what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from qtui_core.live.compare import Level, explanation, gap_share, too_early
from qtui_core.live.snapshot import Fault
from qtui_core.live.state import Measured, RunState
from qtui_core.quantities import format_bytes, plural

#: Phase before the first step -> the words for what it does.
DOING: Final = {
    "import": "importing torch and the model's class",
    "load": "loading the weights",
    "quantize": "quantizing the weights",
    "prepare": "preparing the model",
    "compare": "comparing the next tokens, adapters on and off",
}


#: The least gap that is shown as a number.
_SHOWN: Final = 0.0001


def conclude_train(state: RunState, found: Measured, levels: Sequence[Level]) -> str:
    """How a run ended, its peak beside the estimate, its loss, and what explains the difference."""
    fault = state.fault
    if fault is not None and fault.fatal:
        return " ".join(filter(None, (fault.text, _saving(fault), _peak(state, found))))
    parts = [_ran(state), _peak(state, found), _loss(found.losses), explanation(state, levels)]
    if state.steps and too_early(state):
        parts.append(
            "Two whole steps are needed to compare a run with its estimate, which counts the "
            "optimizer's states from the first step on."
        )
    return " ".join(filter(None, parts))


def _ran(state: RunState) -> str:
    count = len(state.steps)
    ended = "before the run was stopped" if state.over else "as far as it was recorded"
    if not count:
        return f"No step was over {ended}."
    header = state.header
    where = "" if header is None else f" on {header.device.name}"
    if header is None or header.steps in (None, count):
        early = header is not None and header.steps is None and state.status == "stopped"
        return f"{plural(count, 'step')} ran{where}{f' {ended}' if early else ''}."
    return f"{count:,} of {plural(header.steps, 'step')} ran{where} {ended}."


def _peak(state: RunState, found: Measured) -> str:
    predicted = state.header.predicted if state.header is not None else None
    peak = found.peak
    if peak is None or not peak.peak_allocated_bytes:  # it failed before anything was made
        return ""
    most = peak.peak_allocated_bytes
    said = f"The peak of {format_bytes(most)} was {within(peak.phase)}"
    if predicted is None:
        return f"{said}."
    estimated = format_bytes(predicted.peak_allocated_bytes)
    if too_early(state):
        return f"{said}; the estimate of whole steps is {estimated}."
    gap = gap_share(predicted.peak_allocated_bytes, most)
    if gap is None:
        return f"{said}."
    return f"{said}; the estimate of {estimated} is {_off(gap)}."


def _off(gap: float) -> str:
    if not gap:
        return "exact"
    if abs(gap) < _SHOWN / 2:
        return f"right to {_SHOWN:.2%}"
    return f"{abs(gap):.2%} too {'low' if gap > 0 else 'high'}"


def within(phase: str) -> str:
    """The words for "in a phase"."""
    return phase if phase.endswith("steps") else f"in the {phase} phase"


def _loss(losses: Sequence[float | None]) -> str:
    known = [loss for loss in losses if loss is not None]
    if not known:
        return ""
    if any(not math.isfinite(loss) for loss in known):
        return "The loss became no number, and the run counts as failed."
    if len(known) == 1:
        return f"The loss was {known[0]:.3g} nats a token."
    first, last = f"{known[0]:.3g}", f"{known[-1]:.3g}"
    if first == last:
        return f"The loss was {last} nats a token at first and at last."
    change = "fell" if known[-1] < known[0] else "rose"
    return f"The loss {change}: from {first} to {last} nats a token."


def _saving(fault: Fault) -> str:
    """The change that would save most, unless the fault's text already names it."""
    if not fault.advice or fault.advice[0][0] in fault.text:
        return ""
    change, saved = fault.advice[0]
    return f"`{change}` would save {format_bytes(saved)}."
