"""The kinds of lines that a run writes (qtui_core.recorded_lines): a header, then snapshots."""

from __future__ import annotations

from typing import Final

from qtui_core.live import snapshot
from qtui_core.live.header import SCHEMA_VERSION, RecordingHeader
from qtui_core.live.snapshot import Snapshot
from qtui_core.recorded_lines import LineKinds

RunEvent = RecordingHeader | Snapshot

RUN_LINES: Final = LineKinds[RunEvent](
    {
        "header": RecordingHeader,
        "phase begun": snapshot.PhaseBegun,
        "phase ended": snapshot.PhaseEnded,
        "sample": snapshot.Sample,
        "step": snapshot.StepTaken,
        "adapters": snapshot.AdaptersCompared,
        "ranges": snapshot.StepRanges,
        "said": snapshot.LogMessage,
        "fault": snapshot.Fault,
        "state": snapshot.State,
        "end": snapshot.End,
    },
    SCHEMA_VERSION,
)
KINDS: Final = RUN_LINES.kinds
to_line: Final = RUN_LINES.to_line
from_line: Final = RUN_LINES.from_line
