"""Reads recordings of runs: the reports of a run, line by line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.live.header import PredictedCurve, RecordingHeader
from qtui_core.live.lines import RUN_LINES, RunEvent
from qtui_core.live.snapshot import End, Snapshot
from qtui_core.recorded_lines import RecordingReader


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
        return "" if event.predicted is None else _wrong_curve(event.predicted.curve)
    if math.isfinite(event.seconds) and event.seconds >= 0:
        return ""
    return f"Its time of {event.seconds} seconds is not a finite number from 0 on."


def _wrong_curve(curve: PredictedCurve) -> str:
    if len(curve.bytes) != len(curve.components):
        return "Its predicted curve needs one row for each component."
    if any(len(row) != len(curve.positions) for row in curve.bytes):
        return "Each row of its predicted curve needs one value for each position."
    if any(value < 0 for row in curve.bytes for value in row):
        return "Its predicted curve has bytes below zero."
    if any(before >= after for before, after in pairwise(curve.positions)):
        return "The positions of its predicted curve do not rise."
    edges = [edge for _, start, stop in curve.spans for edge in (start, stop)]
    if any(before > after for before, after in pairwise([0, *edges])):
        return "The phases of its predicted curve overlap."
    return ""


_READER: Final = RecordingReader(
    RunRecording,
    RUN_LINES,
    "a run",
    RecordingHeader,
    "a header",
    over=lambda event: isinstance(event, End),
    wrong=_wrong,
)
read_recording: Final = _READER.read
parse_recording: Final = _READER.parse
