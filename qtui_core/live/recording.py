"""Recordings of runs: the reports of a run, line by line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.live import snapshot
from qtui_core.live.snapshot import End, PredictedCurve, RecordingHeader, Snapshot
from qtui_core.recorded_lines import LineKinds

RunEvent = RecordingHeader | Snapshot


@dataclass(frozen=True)
class RunRecording:
    """A recording as it was read.

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
        "phase begun": snapshot.PhaseBegun,
        "phase ended": snapshot.PhaseEnded,
        "sample": snapshot.Sample,
        "step": snapshot.StepTaken,
        "adapters": snapshot.AdaptersCompared,
        "ranges": snapshot.StepRanges,
        "said": snapshot.LogMessage,
        "fault": snapshot.Fault,
        "state": snapshot.State,
        "end": End,
    },
    snapshot.SCHEMA_VERSION,
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
