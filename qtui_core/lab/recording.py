"""What an experiment tells as lines, and a recording of it read again. Standard library only."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.lab.results import (
    SCHEMA_VERSION,
    JobDone,
    LabBegun,
    LabEvent,
    LabFault,
    LabResult,
    StepProgress,
)
from qtui_core.recorded_lines import LineKinds, RecordingReader

LAB_LINES: Final = LineKinds[LabEvent](
    {
        "lab begun": LabBegun,
        "lab step": StepProgress,
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
        events: the rest, in order.
        complaint: a sentence on lines that could not be read, or on an end that is missing;
            empty where all is well.
    """

    begun: LabBegun
    events: tuple[LabEvent, ...]
    complaint: str = ""

    @property
    def jobs(self) -> tuple[JobDone, ...]:
        """The parts that were done, from which the experiment can go on."""
        return tuple(event for event in self.events if isinstance(event, JobDone))

    @property
    def result(self) -> LabResult | None:
        """The last, as failed where a fault follows it; None where no job was done."""
        found = [event for event in self.events if isinstance(event, LabResult)]
        if found and isinstance(last := self.events[-1], LabFault):
            return replace(found[-1], ended="failed", fault=last.text)
        return found[-1] if found else None


_READER: Final = RecordingReader(
    LabRecording,
    LAB_LINES,
    "an experiment",
    LabBegun,
    "the beginning of one",
    over=lambda event: (
        isinstance(event, LabFault) or (isinstance(event, LabResult) and bool(event.ended))
    ),
)
is_lab_recording: Final = _READER.begins
read_lab_recording: Final = _READER.read
parse_lab_recording: Final = _READER.parse
