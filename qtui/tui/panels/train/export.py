"""The contents of the Train panel as JSON and CSV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from qtui.screen.plan.export import panel_data
from qtui.screen.plan.shown import Shown
from qtui.tui.panels.train.shown import RunShown
from qtui_core.live.compare import summary
from qtui_core.live.state import RunState


def run_data(shown: Shown, run: RunShown, sentence: str) -> dict[str, Any] | None:
    """The run as `qtui train --json` prints it; before a run, the estimate."""
    if run.state.header is None:
        return panel_data(shown, sentence)
    return {
        "sentence": sentence,
        "recording": str(run.path) if run.path is not None else None,
        **summary(run.state),
    }


def run_table(state: RunState) -> Iterable[Sequence[object]]:
    """A header, and a row for each sample of the run: time, step, phase, and the bytes of each
    level."""
    yield ("seconds", "step", "phase", "allocated", "reserved", "process", "device")
    for moment in state.history.moments:
        yield tuple(asdict(moment).values())
