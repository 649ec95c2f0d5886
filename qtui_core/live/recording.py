"""Reads recordings of runs: the reports of a run, line by line. They are written during the run, so
that a run that was killed has lost at most its last line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.live.header import PredictedCurve, RecordingHeader
from qtui_core.live.lines import Told, from_line
from qtui_core.live.snapshot import End, Snapshot
from qtui_core.recorded_lines import LineError, lines_of


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

    def __iter__(self) -> Iterator[Told]:
        """All reports, the header first."""
        yield self.header
        yield from self.snapshots


def read_recording(path: Path | str) -> RunRecording:
    """A recording from its file, as far as it can be read.

    Raises UsageError for a file that is not there, cannot be read, or is no recording.
    """
    try:
        with open(path, "rb") as file:
            return parse_recording(lines_of(file))
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"The recording {str(path)!r} cannot be read: {reason}.") from error
    except UsageError as error:
        raise UsageError(f"{str(path)!r} is no recording of a run. {error}") from None


def parse_recording(lines: Iterable[str | bytes]) -> RunRecording:
    """A recording from its lines. Raises UsageError where it does not begin with a header, or with
    one that contradicts itself."""
    kept = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    last, first = next(kept, (0, b""))
    if not last:
        raise UsageError("It is empty.")
    header = _header(first)
    snapshots: list[Snapshot] = []
    broken: list[tuple[int, LineError]] = []
    for last, line in kept:
        try:
            told = from_line(line)
        except LineError as error:
            broken.append((last, error))
            continue
        if isinstance(told, RecordingHeader):
            broken.append((last, LineError("A second recording begins there.")))
            break
        wrong = "" if told is None else _wrong_time(told)
        if wrong:
            broken.append((last, LineError(wrong)))
        elif told is not None:
            snapshots.append(told)
    ended = any(isinstance(told, End) for told in snapshots)
    return RunRecording(header, tuple(snapshots), _complaint(broken, last, ended))


def _header(line: str | bytes) -> RecordingHeader:
    try:
        told = from_line(line)
    except LineError as error:
        raise UsageError(f"Its first line is not a header: {error}") from None
    if not isinstance(told, RecordingHeader):
        raise UsageError("Its first line is not a header.")
    wrong = _wrong_header(told)
    if wrong:
        raise UsageError(wrong)
    return told


def _wrong_header(header: RecordingHeader) -> str:
    """A sentence on what in a header contradicts itself; empty where nothing does."""
    return "" if header.predicted is None else _wrong_curve(header.predicted.curve)


def _wrong_time(told: Snapshot) -> str:
    """The same for the time of a snapshot."""
    if math.isfinite(told.seconds) and told.seconds >= 0:
        return ""
    return f"Its time of {told.seconds} seconds is not a finite number from 0 on."


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


def _complaint(broken: list[tuple[int, LineError]], last: int, ended: bool) -> str:
    """What is wrong with lines, and with the end."""
    if not broken:
        return "" if ended else "The recording stops before the run did; all of it is shown."
    number, error = broken[0]
    if len(broken) > 1:
        return (
            f"{len(broken)} lines cannot be read and are left out; the first is line {number}: "
            f"{error}"
        )
    if number == last and not ended:
        return f"The recording is cut off in line {number}; everything before that is shown."
    return f"Line {number} cannot be read and is left out: {error}"
