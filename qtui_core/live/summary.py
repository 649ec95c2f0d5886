"""A run as the data of `qtui train --json` and `qtui replay --json`: bytes as integers under the
keys that scripts rely on, unknown as None."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from qtui_core.live.compare import by_component, by_phase, too_early
from qtui_core.live.explain import explain
from qtui_core.live.gap import Level, gap
from qtui_core.live.header import RecordingHeader
from qtui_core.live.measured import Measured, measured
from qtui_core.live.state import RunState


def summary(state: RunState) -> dict[str, Any]:
    """The `train` object of a run that told at least its header. Raises ValueError before that."""
    header = state.header
    if header is None:
        raise ValueError("A run that told nothing has no summary.")
    found = measured(state)
    levels = levels_of(state, found)
    predicted = header.predicted
    return {
        **_run(header),
        "estimate": None if predicted is None else dict(predicted.memory),
        "estimate_missing": header.why_not or None,
        "warning": (predicted.warning or None) if predicted is not None else None,
        "status": state.status,
        "steps_taken": len(state.steps),
        "measured": _measured(found),
        "phases": _phases(state),
        "components": _components(state),
        "levels": [_level(level) for level in levels],
        "gap": [
            {"level": level.name, "part": part.name, "bytes": part.bytes}
            for level in levels
            for part in level.parts
        ],
        "explanation": explanation(state, levels) or None,
        "adapters": None if state.adapters is None else asdict(state.adapters),
        "faults": [asdict(fault) for fault in state.faults],
        "log": [said.text for said in state.log],
    }


def levels_of(state: RunState, found: Measured) -> tuple[Level, ...]:
    """The gap at each level; empty where nothing was estimated, and before a step is over: the
    estimate is of whole steps."""
    predicted = state.header.predicted if state.header is not None else None
    return () if predicted is None or not state.steps else gap(predicted, found)


def explanation(state: RunState, levels: Sequence[Level]) -> str:
    """What the largest difference is and what to do about it; empty where it is too early."""
    return "" if too_early(state) else explain(levels, tensors=state.counted == "tensors")


def _run(header: RecordingHeader) -> dict[str, Any]:
    return {
        "model": header.model,
        "architecture": header.architecture,
        "parameters": header.parameters,
        "made": header.made,
        "device": asdict(header.device),
        "versions": dict(header.versions),
        "plan": dict(header.plan),
        "steps": header.steps,
        "data": header.data,
    }


def _measured(found: Measured) -> dict[str, Any]:
    return {
        "counted": found.counted,
        "resident_bytes": found.resident_bytes,
        "peak_allocated_bytes": found.peak_allocated_bytes,
        "peak_phase": None if found.peak is None else found.peak.phase,
        "peak_reserved_bytes": found.peak_reserved_bytes,
        "process_bytes": found.process_bytes,
        "device_used_bytes": found.device_used_bytes,
        "context_bytes": found.context_bytes,
        "step_seconds": found.step_seconds,
        "tokens_per_second": found.tokens_per_second,
        "loss": list(found.losses),
    }


def _phases(state: RunState) -> list[dict[str, Any]]:
    return [
        {
            "name": row.name,
            "estimated_bytes": row.estimated,
            "measured_bytes": row.measured,
            "error": row.gap,
        }
        for row in by_phase(state)
    ]


def _components(state: RunState) -> list[dict[str, Any]]:
    """Of each phase that both sides have, at its peak."""
    return [
        {
            "phase": phase.name,
            "name": row.name,
            "estimated_bytes": row.estimated,
            "measured_bytes": row.measured,
        }
        for phase in by_phase(state)
        for row in by_component(state, phase.name, peak=True)
    ]


def _level(level: Level) -> dict[str, Any]:
    return {
        "level": level.name,
        "estimated_bytes": level.estimated,
        "measured_bytes": level.measured,
        "not_measured": level.why_not or None,
    }
