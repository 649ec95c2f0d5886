"""What an experiment tells as lines, and a recording of it read again. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.lab.results import (
    SCHEMA_VERSION,
    JobDone,
    LabBegun,
    LabFault,
    LabResult,
    LabTold,
    StepSeen,
)
from qtui_core.recorded_lines import LONGEST, LineError, LineKinds, lines_of

LAB_LINES: Final = LineKinds[LabTold](
    {
        "lab begun": LabBegun,
        "lab step": StepSeen,
        "lab job": JobDone,
        "lab result": LabResult,
        "lab fault": LabFault,
    },
    SCHEMA_VERSION,
)
#: Lines that are read at most.
_MOST: Final = 1_000_000


@dataclass(frozen=True)
class LabRecording:
    """A recording as it was read.

    Attributes:
        begun: how it begins.
        told: the rest, in order.
        complaint: a sentence on lines that could not be read, or on an end that is missing;
            empty where all is well.
    """

    begun: LabBegun
    told: tuple[LabTold, ...]
    complaint: str = ""

    @property
    def jobs(self) -> tuple[JobDone, ...]:
        """The parts that were done, from which the experiment can go on."""
        return tuple(told for told in self.told if isinstance(told, JobDone))

    @property
    def result(self) -> LabResult | None:
        """The last; None where no job was done."""
        found = [told for told in self.told if isinstance(told, LabResult)]
        return found[-1] if found else None


def is_lab_recording(path: Path | str) -> bool:
    """Whether a file begins as the recording of an experiment does. False for one that cannot be
    read."""
    try:
        with open(path, "rb") as file:
            return isinstance(LAB_LINES.from_line(file.readline(LONGEST)), LabBegun)
    except (OSError, LineError):
        return False


def read_lab_recording(path: Path | str) -> LabRecording:
    """A recording from its file, as far as it can be read.

    Raises UsageError for a file that is not there, cannot be read, or is no recording.
    """
    try:
        with open(path, "rb") as file:
            return parse_lab_recording(lines_of(file))
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"The recording {str(path)!r} cannot be read: {reason}.") from error
    except UsageError as error:
        raise UsageError(f"{str(path)!r} is no recording of an experiment. {error}") from None


def parse_lab_recording(lines: Iterable[str | bytes]) -> LabRecording:
    """A recording from its lines. Raises UsageError where it does not begin as one."""
    kept = ((number, line) for number, line in enumerate(islice(lines, _MOST), 1) if line.strip())
    first = next(kept, None)
    if first is None:
        raise UsageError("It is empty.")
    try:
        begun = LAB_LINES.from_line(first[1])
    except LineError as error:
        raise UsageError(f"Its first line is not the beginning of one: {error}") from None
    if not isinstance(begun, LabBegun):
        raise UsageError("Its first line is not the beginning of one.")
    found: list[LabTold] = []
    broken: list[int] = []
    for number, line in kept:
        try:
            told = LAB_LINES.from_line(line)
        except LineError:
            broken.append(number)
            continue
        if told is not None:
            found.append(told)
    ended = any(isinstance(told, LabResult) and told.ended for told in found)
    complaint = ""
    if broken:
        complaint = (
            f"{len(broken):,} lines cannot be read and are left out, line {broken[0]:,} first."
            if len(broken) > 1
            else f"Line {broken[0]:,} cannot be read and is left out."
        )
    elif not ended:
        complaint = "The recording stops before the experiment did; all of it is shown."
    return LabRecording(begun, tuple(found), complaint)
