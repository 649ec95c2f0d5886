"""What an experiment tells as lines, and a recording of it read again. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from itertools import chain
from typing import Any, Final

from qtui_core.dataclass import dataclass
from qtui_core.lab.results import (
    SCHEMA_VERSION,
    Density,
    ExponentHistogram,
    Heat,
    JobDone,
    LabBegun,
    LabEvent,
    LabFault,
    LabResult,
    Picture,
    StepProgress,
)
from qtui_core.recorded_lines import LineKinds

#: Numbers of pictures are below this, and zero or above its inverse.
_LARGEST: Final = 1e100


@dataclass(frozen=True)
class LabRecording:
    """A recording as it was read: its beginning, the rest in order, and a sentence on lines that
    could not be read or on an end that is missing, empty where all is well."""

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
        results = [event for event in self.events if isinstance(event, LabResult)]
        if results and isinstance(last := self.events[-1], LabFault):
            return replace(results[-1], ended="failed", fault=last.text)
        return results[-1] if results else None


def _wrong(event: LabEvent) -> str:
    for picture in event.findings.pictures if isinstance(event, LabResult) else ():
        if not _drawable(picture):
            return f"Its picture {picture.title!r:.60} has numbers that cannot be drawn."
    return ""


def _drawable(picture: Picture) -> bool:
    """Whether its numbers can be subtracted and divided, counts are counts, and what belongs
    together has the same size. A number that is not finite is left out of most pictures."""
    if isinstance(picture, Density) and min(_numbers(picture.counts), default=0) < 0:
        return False
    if isinstance(picture, ExponentHistogram) and not math.isfinite(picture.shift):
        return False
    if isinstance(picture, Heat):
        rows, columns = len(picture.rows), len(picture.columns)
        axes = len(picture.scale_axes), len(picture.products)
        if axes not in ((0, 0), (rows, columns)):
            return False
        if [len(row) for row in picture.values] != [columns] * rows:
            return False
    finite = (abs(n) for n in _numbers(picture) if n and math.isfinite(n))
    return all(1 / _LARGEST < n < _LARGEST for n in finite)


def _numbers(part: Any) -> Iterator[float]:
    if isinstance(part, int | float):
        yield part
    elif is_dataclass(part):
        yield from _numbers(tuple(getattr(part, field.name) for field in fields(part)))
    elif isinstance(part, tuple):
        yield from chain.from_iterable(map(_numbers, part))


LAB_LINES: Final = LineKinds[LabEvent, LabRecording](
    {
        "lab begun": LabBegun,
        "lab step": StepProgress,
        "lab job": JobDone,
        "lab result": LabResult,
        "lab fault": LabFault,
    },
    SCHEMA_VERSION,
    "an experiment",
    LabBegun,
    "the beginning of one",
    LabRecording,
    over=lambda event: (
        isinstance(event, LabFault) or (isinstance(event, LabResult) and bool(event.ended))
    ),
    wrong=_wrong,
)
is_lab_recording: Final = LAB_LINES.begins
read_lab_recording: Final = LAB_LINES.read
parse_lab_recording: Final = LAB_LINES.parse
