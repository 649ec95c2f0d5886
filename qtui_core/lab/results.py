"""The parts of an experiment, and what it finds: a table, pictures, and the sentence about them.
Standard library only, so that the screen, the report and a replay use the same object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, Final, Literal

from qtui_core.dataclass import dataclass
from qtui_core.job import Job

SCHEMA_VERSION: Final = 1

#: The content of a table cell; None if there is nothing to say.
Cell = int | float | str | None
#: Of a cell. A difference is in nats, with its sign; a loss is too, and has none.
Unit = Literal["", "share", "bytes", "seconds", "nats", "loss", "log2"]


@dataclass(frozen=True)
class LabColumn:
    """A column of the table: the key of its cells, its heading, and their unit."""

    key: str
    title: str
    unit: Unit = ""


@dataclass(frozen=True)
class LabLine:
    """A line of a chart, with one number per point, and a band if `low` and `high` are given.

    `x` None counts from 1. A `faint` line, such as the true course, is drawn behind the others.
    """

    name: str
    y: tuple[float | None, ...]
    x: tuple[float, ...] | None = None
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    faint: bool = False


@dataclass(frozen=True)
class LabChart:
    """Lines over an axis. Differences within ± `floor` around zero mean nothing; it is None if
    there is no such band."""

    title: str
    x: str
    y: str
    lines: tuple[LabLine, ...]
    log_x: bool = False
    log_y: bool = False
    floor: float | None = None


@dataclass(frozen=True)
class MatrixProduct:
    """The names of two matrices, `left` `[rows, summed]` and `right` `[summed, columns]`, that are
    multiplied, and of their axes."""

    left: str
    right: str
    rows: str
    summed: str
    columns: str


@dataclass(frozen=True)
class Heat:
    """Numbers in rows and columns, drawn as colours; `values[row][column]`, None for no number.

    `unit` is the unit of the numbers. `log` colours by their logarithm. `products` says for each
    column what it multiplies, and `scale_axes` for each row along which axes the scales of each
    matrix differ (none: one scale for all of it; None: there are no scales). Both are empty if the
    numbers are no errors of products.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    unit: str = ""
    log: bool = False
    scale_axes: tuple[Mapping[str, tuple[str, ...]] | None, ...] = ()
    products: tuple[MatrixProduct, ...] = ()


@dataclass(frozen=True)
class LabBar:
    """A bar: its value, the least and the most of several seeds, and what is written after it."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True)
class LabBars:
    """Bars from zero in named groups, each group on a scale of its own. `unit` is that of the
    values."""

    title: str
    unit: str
    groups: tuple[tuple[str, tuple[LabBar, ...]], ...]


@dataclass(frozen=True)
class FormatSpan:
    """A bar under a histogram: the range of a format from its smallest to its largest number, as
    base-2 logarithms. Numbers below `whole` have fewer bits."""

    name: str
    low: float
    whole: float
    high: float


@dataclass(frozen=True)
class ExponentHistogram:
    """How many values lie at each power of two: `counts[i]` of a series have a magnitude in
    [2^(first+i), 2^(first+i+1)). Each span is a bar below; `shift` is the base-2 logarithm of the
    scale that multiplies the values before they are cast."""

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
    """A named point on a plane. A `faint` one stands back behind the others: another is better in
    both."""

    name: str
    x: float
    y: float
    faint: bool = False


@dataclass(frozen=True)
class LabFrontier:
    """The best possible choices (`line`), and named choices beside it."""

    title: str
    x: str
    y: str
    line: tuple[tuple[float, float], ...]
    points: tuple[Point, ...] = ()


Picture = LabChart | LabBars | Heat | ExponentHistogram | Density | LabFrontier


@dataclass(frozen=True)
class LabPart:
    """A part of an experiment that can run in either process.

    Attributes:
        key: its name within the experiment, also in recordings.
        run: does the work, and tells of its steps, with a value to show as the words;
            `outcome` is the type that it returns, for the codec.
        cost: about how many seconds of one thread it takes; the most expensive job starts first.
    """

    key: str
    run: Callable[[Job], Any]
    outcome: Any
    cost: float


@dataclass(frozen=True)
class Findings:
    """The findings from the jobs that are done so far.

    Attributes:
        rows: of the table, cells by key; a missing cell is not known yet.
        pictures: the most important first.
        verdict: the sentence; empty as long as there is no conclusion.
        floor: differences below this are not interpreted; None if there is no such limit.
        notes: sentences about what is missing, emulated or left out.
    """

    columns: tuple[LabColumn, ...]
    rows: tuple[Mapping[str, Cell], ...]
    pictures: tuple[Picture, ...] = ()
    verdict: str = ""
    floor: float | None = None
    notes: tuple[str, ...] = ()


def findings(
    columns: Iterable[LabColumn] = (),
    rows: Iterable[Mapping[str, Any]] = (),
    pictures: Iterable[Picture | None] = (),
    said: Iterable[str] = (),
    floor: float | None = None,
    notes: Iterable[str] = (),
    *,
    spare: Iterable[str] = (),
    parts: Iterable[Findings | None] = (),
) -> Findings:
    """Findings, and after them those of the `parts`, without what is empty: pictures, sentences,
    notes, and the `spare` columns (by key) that no row fills. The verdict is what is `said`."""
    there = [part for part in parts if part is not None]
    rows = (*rows, *(row for part in there for row in part.rows))
    pictures = (*pictures, *(picture for part in there for picture in part.pictures))
    filled = {key for row in rows for key, cell in row.items() if cell is not None}
    return Findings(
        tuple(column for column in columns if column.key not in {*spare} - filled),
        rows,
        tuple(picture for picture in pictures if picture is not None),
        " ".join(filter(None, (*said, *(part.verdict for part in there)))),
        floor,
        tuple(filter(None, (*notes, *(note for part in there for note in part.notes)))),
    )


@dataclass(frozen=True)
class LabResult:
    """An experiment, finished or not.

    Attributes:
        seconds: of this run, without jobs that came from a recording.
        jobs, done: how many jobs there are, and how many are done.
        ended: "done", "stopped" or "failed"; empty while it runs.
        fault: why it failed, as a sentence.
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
    fault: str = ""
    schema_version: int = SCHEMA_VERSION

    PRINTED = (
        *("schema_version", "experiment", "question", "model", "settings", "seeds"),
        *((key, f"findings.{key}") for key in ("floor", "columns", "rows", "pictures")),
        *(("verdict", "findings.verdict"), ("notes", "findings.notes")),
        *("jobs", "done", "ended", "fault", "seconds", "versions"),
    )


@dataclass(frozen=True)
class LabBegun:
    """The first report of a run: which jobs it will run."""

    experiment: str
    question: str
    model: str
    settings: Mapping[str, Any]
    jobs: tuple[str, ...]
    seconds: float
    versions: Mapping[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class StepProgress:
    """A step of a job: how far it is, and a value to show."""

    job: str
    step: int
    steps: int
    value: float | None = None


@dataclass(frozen=True)
class JobDone:
    """The outcome of a job, from which the findings are made; `fault` says why there is none, and
    `code` is the exit code of a command that fails so."""

    job: str
    outcome: Any
    seconds: float
    fault: str = ""
    code: int = 0


@dataclass(frozen=True)
class LabFault:
    """Why an experiment did not begin, as a sentence."""

    text: str


LabEvent = LabBegun | StepProgress | JobDone | LabResult | LabFault
