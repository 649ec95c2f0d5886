"""A run as the JSON of `qtui train --json` and `qtui replay --json`: bytes as integers under the
keys that scripts rely on, unknown values as None."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qtui_core.codec import printed
from qtui_core.live.compare import by_component, by_phase, too_early
from qtui_core.live.explain import explain
from qtui_core.live.gap import Level, gap
from qtui_core.live.measured import Measured, measured
from qtui_core.live.state import RunState


def summary(state: RunState) -> dict[str, Any]:
    """The `train` object of a run that reported at least its header. Raises ValueError before
    that."""
    header = state.header
    if header is None:
        raise ValueError("A run that reported nothing has no summary.")
    found = measured(state)
    levels = levels_of(state, found)
    predicted = header.predicted
    return {
        **printed(header),
        "estimate": None if predicted is None else printed(predicted.memory),
        "estimate_missing": header.why_not or None,
        "warning": (predicted.warning or None) if predicted is not None else None,
        "status": state.status,
        "steps_taken": len(state.steps),
        "measured": printed(found),
        "phases": printed(by_phase(state)),
        "components": _components(state),
        "levels": printed(levels),
        "gap": [
            {"level": level.name, "part": part.name, "bytes": part.bytes}
            for level in levels
            for part in level.parts
        ],
        "explanation": explanation(state, levels) or None,
        "adapters": printed(state.adapters),
        "faults": printed(state.faults),
        "log": [said.text for said in state.log],
    }


def levels_of(state: RunState, found: Measured) -> tuple[Level, ...]:
    """The gap at each level. Empty if nothing was estimated, and before a whole step has ended,
    because the estimate is of whole steps."""
    predicted = state.header.predicted if state.header is not None else None
    return () if predicted is None or not state.steps else gap(predicted, found)


def explanation(state: RunState, levels: Sequence[Level]) -> str:
    """The cause of the largest difference and what to do about it; empty if it is too early."""
    return "" if too_early(state) else explain(levels, tensors=state.counted == "tensors")


def _components(state: RunState) -> list[dict[str, Any]]:
    """The components of each phase that both sides have, at its peak."""
    return [
        {"phase": phase.name, **printed(row)}
        for phase in by_phase(state)
        for row in by_component(state, phase.name, peak=True)
    ]
