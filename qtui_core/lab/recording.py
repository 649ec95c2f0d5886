"""What an experiment tells as lines, and a recording of it read again. Standard library only."""

from __future__ import annotations

from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.lab.results import (
    SCHEMA_VERSION,
    JobDone,
    LabBegun,
    LabFault,
    LabResult,
    LabTold,
    StepSeen,
)
from qtui_core.recorded_lines import LineKinds, RecordingReader

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


_READER: Final = RecordingReader(
    LabRecording,
    LAB_LINES,
    "an experiment",
    LabBegun,
    "the beginning of one",
    over=lambda told: isinstance(told, LabResult) and bool(told.ended),
)
is_lab_recording: Final = _READER.begins
read_lab_recording: Final = _READER.read
parse_lab_recording: Final = _READER.parse
