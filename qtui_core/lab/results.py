"""What an experiment finds: a table, pictures, and the sentence that they mean. Standard library
only, so that the screen, the report and a replay hold the same object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final, Literal

from qtui_core.dataclass import dataclass

SCHEMA_VERSION: Final = 1

#: What stands in a cell of a table: None where there is nothing to say.
Cell = int | float | str | None
Unit = Literal["", "share", "bytes", "seconds", "nats", "log2"]


@dataclass(frozen=True)
class LabColumn:
    """A column of the table: the key of its cells, what stands above them, and their unit."""

    key: str
    title: str
    unit: Unit = ""


@dataclass(frozen=True)
class LabLine:
    """A line of a chart, with a band where `low` and `high` are given, one number a point.

    `x` None counts from 1. A `faint` line is drawn behind the others, as the truth is.
    """

    name: str
    y: tuple[float | None, ...]
    x: tuple[float, ...] | None = None
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    faint: bool = False


@dataclass(frozen=True)
class LabChart:
    """Lines over an axis. `floor` is half of the height of the band around zero in which a
    difference says nothing; None where there is none."""

    title: str
    x: str
    y: str
    lines: tuple[LabLine, ...]
    log_x: bool = False
    log_y: bool = False
    floor: float | None = None


@dataclass(frozen=True)
class Heat:
    """Numbers in rows and columns, drawn as colours; `values[row][column]`, None for no number.

    `unit` says what they are. `log` colours by their logarithm. `scaled` names, for each row, the
    axis that its scales lie along, where they do; `summed` the axis that each column sums over.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    unit: str = ""
    log: bool = False
    scaled: tuple[str, ...] = ()
    summed: tuple[str, ...] = ()


@dataclass(frozen=True)
class FormatSpan:
    """A bar under a histogram: what a format can hold, from its smallest to its largest number,
    as base-2 logarithms; what is below `whole` keeps fewer bits."""

    name: str
    low: float
    whole: float
    high: float


@dataclass(frozen=True)
class ExponentHistogram:
    """How many values lie at each power of two: `counts[i]` of them have a magnitude in
    [2^(first+i), 2^(first+i+1)). Each span is a bar beneath; `shift` is the base-2 logarithm of
    the scale that values have before they reach the formats."""

    title: str
    first: int
    series: tuple[tuple[str, tuple[int, ...]], ...]
    spans: tuple[FormatSpan, ...] = ()
    shift: float = 0.0


@dataclass(frozen=True)
class Density:
    """Counts over a plane, with lines drawn over it: `counts[row][column]`, row 0 lowest."""

    title: str
    x: str
    y: str
    left: float
    right: float
    low: float
    high: float
    counts: tuple[tuple[int, ...], ...]
    lines: tuple[LabLine, ...] = ()


@dataclass(frozen=True)
class Point:
    """A named place on a plane."""

    name: str
    x: float
    y: float


@dataclass(frozen=True)
class LabFrontier:
    """The best that can be had (`line`), and named choices beside it."""

    title: str
    x: str
    y: str
    line: tuple[tuple[float, float], ...]
    points: tuple[Point, ...] = ()


Picture = LabChart | Heat | ExponentHistogram | Density | LabFrontier


@dataclass(frozen=True)
class Findings:
    """What the jobs that are done so far say.

    Attributes:
        columns: of the table.
        rows: of the table, a cell a key; a cell that is not there is not known yet.
        pictures: the first is the one to look at.
        verdict: the sentence. Empty as long as nothing can be said.
        floor: the difference below which nothing is claimed; None where there is no such.
        notes: sentences about what is missing, emulated or left out.
    """

    columns: tuple[LabColumn, ...]
    rows: tuple[Mapping[str, Cell], ...]
    pictures: tuple[Picture, ...] = ()
    verdict: str = ""
    floor: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LabResult:
    """An experiment, finished or not.

    Attributes:
        experiment, question: of the catalogue.
        model: as it was asked for.
        settings: every one of them.
        seeds: that were run.
        seconds: of this run; what a recording gave is not in it.
        versions: library -> version.
        jobs, done: how many parts there are, and how many are done.
        ended: "done", "stopped" or "failed"; empty while it runs.
        findings: what is known so far.
    """

    experiment: str
    question: str
    model: str
    settings: Mapping[str, Any]
    seeds: tuple[int, ...]
    seconds: float
    versions: Mapping[str, str]
    jobs: int
    done: int
    findings: Findings
    ended: str = ""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class LabBegun:
    """The first line: what is to be run."""

    experiment: str
    question: str
    model: str
    settings: Mapping[str, Any]
    jobs: tuple[str, ...]
    seconds: float
    versions: Mapping[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class StepSeen:
    """A step of a job: what it is doing, and how far it is."""

    job: str
    step: int
    steps: int
    value: float | None = None


@dataclass(frozen=True)
class JobDone:
    """A job's outcome, from which alone the findings are made; `fault` is why there is none."""

    job: str
    outcome: Any
    seconds: float
    fault: str = ""
