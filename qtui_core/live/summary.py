"""A run as the JSON of `qtui train --json` and `qtui replay --json`: bytes as integers under the
keys that scripts rely on, unknown values as None."""

from __future__ import annotations

from typing import Any

from qtui_core.codec import printed
from qtui_core.live.compare import by_component, by_phase
from qtui_core.live.gap import explanation, levels_of
from qtui_core.live.measured import measured
from qtui_core.live.state import RunState


def summary(state: RunState) -> dict[str, Any]:
    """The `train` object of a run that reported at least its header. Raises ValueError before
    that."""
    header = state.header
    if header is None:
        raise ValueError("A run that reported nothing has no summary.")
    figures, phases = measured(state), by_phase(state)
    levels = levels_of(state, figures)
    predicted = header.predicted
    return {
        **printed(header),
        "estimate": None if predicted is None else printed(predicted.memory),
        "estimate_missing": header.why_not or None,
        "warning": (predicted.warning or None) if predicted is not None else None,
        "status": state.status,
        "steps_taken": len(state.steps),
        "measured": printed(figures),
        "phases": [{**printed(phase), "error": printed(phase.gap)} for phase in phases],
        # Of each phase that both sides have, at its peak.
        "components": [
            {"phase": phase.name, **printed(row)}
            for phase in phases
            for row in by_component(state, phase.name, peak=True)
        ],
        "levels": printed(levels),
        "gap": [
            {"level": level.name, "part": part.name, "bytes": part.bytes}
            for level in levels
            for part in level.parts
        ],
        "explanation": explanation(state, levels) or None,
        "adapters": printed(state.adapters),
        "faults": printed(state.faults),
        "log": [message.text for message in state.log],
    }
