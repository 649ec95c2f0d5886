"""Limits on the figures of a report: the gates of scripts and CI (`--fail-if`, `--baseline`).

A figure is named by its key in JSON or a short alias. If a report has several lists of rows, the
name of the list comes first (`tensors.sqnr`).
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError, UsageError
from qtui_core.evaluation.figures import LIMITED
from qtui_core.files import without_waiting
from qtui_core.models.files.local import load_object
from qtui_core.models.quoting import listed, quoted
from qtui_core.quantities import BINARY_UNITS, format_bytes, plural

#: The most rows that a sentence names.
NAMED: Final = 5
#: Larger whole numbers than any in a report.
MOST: Final = 1 << 100
#: Files of more bytes are not read as a baseline: no report is as large.
MAX_BASELINE: Final = 256 << 20
#: Each comparison of an expression, and what it says of a figure that it is true of.
COMPARISONS: Final[Mapping[str, tuple[Callable[[float, float], bool], str]]] = {
    "<": (operator.lt, "under"),
    "<=": (operator.le, "at or under"),
    ">": (operator.gt, "above"),
    ">=": (operator.ge, "at or above"),
}
_EXPRESSION: Final = re.compile(
    r"\s*([a-z][a-z0-9_.]*)\s*(<=|>=|<|>)\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)"
    r"\s*([a-z%]*)\s*",
    re.IGNORECASE,
)
#: By the unit of a figure: what a number with this unit is multiplied by.
_UNITS: Final[Mapping[str, Mapping[str, float]]] = {
    "bytes": BINARY_UNITS, "dB": {"": 1, "db": 1}, "share": {"": 1, "%": 0.01}, "": {"": 1},
}  # fmt: skip
#: Examples for the error about an expression that does not parse.
_EXAMPLES: Final = {"memory": "peak>22GiB", "inspect --headers": "peak>22GiB", "eval": "kl>0.01"}


@dataclass(frozen=True)
class GateFigure:
    """A figure that can be limited.

    Attributes:
        key: its name in JSON.
        alias: a short name.
        unit: "bytes", "dB", "share" or "".
        falls: whether a lower figure is worse.
        slack: how much worse than in the baseline it may be: a share of the baseline's figure if
            `relative`, else in its unit.
    """

    key: str
    alias: str = ""
    unit: str = ""
    falls: bool = False
    slack: float = 0.0
    relative: bool = False

    def value_in(self, row: Mapping[str, Any]) -> float | None:
        """The figure of a row; None if it has none. An SQNR without any error is infinite, which
        is null in JSON."""
        high = row.get("high")  # the high end of a range counts
        value = (high if isinstance(high, Mapping) else row).get(self.key, row.get(self.key))
        if isinstance(value, float):
            return None if math.isnan(value) else value
        # A baseline may hold a whole number beyond what a float can be.
        if isinstance(value, int) and not isinstance(value, bool):
            return value if abs(value) < MOST else None
        exact = 0 in (row.get("relative_mse"), row.get("relative_error"))
        return math.inf if self.key == "sqnr_db" and exact else None

    def text(self, value: float) -> str:
        """A figure with its unit: `19.87 dB`, `1,610,612,736 bytes (1.5 GiB)`."""
        if math.isinf(value):
            return f"infinite {self.unit}".rstrip()
        if self.unit == "bytes":
            short = "" if abs(value) < 1000 else f" ({format_bytes(round(value))})"
            return f"{round(value):,} bytes{short}"
        exact = f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
        return exact + (" dB" if self.unit == "dB" else "")


_BYTES: Final = {"resident_bytes": "resident", "peak_live_bytes": "live",
                 "peak_allocated_bytes": "peak", "peak_reserved_bytes": "reserved",
                 "process_bytes": "process", "allocated_bytes": "allocated"}  # fmt: skip
FIGURES: Final = {
    figure.key: figure
    for figure in (
        GateFigure("sqnr_db", "sqnr", "dB", falls=True, slack=0.05),
        GateFigure("relative_mse", slack=0.01, relative=True),
        GateFigure("relative_error", "error", slack=0.01, relative=True),
        GateFigure("kl_sum", slack=0.02, relative=True),
        GateFigure("max_abs_error", slack=0.01, relative=True),
        GateFigure("bits_per_parameter", "bits", slack=0.001),
        GateFigure("bytes", unit="bytes"),
        GateFigure("saturated"),
        GateFigure("nonfinite"),
        *(GateFigure(f.name, f.alias, f.unit, f.falls, f.slack, f.relative) for f in LIMITED),
        *(GateFigure(*names, "bytes", slack=0.001, relative=True) for names in _BYTES.items()),
        GateFigure("kept", falls=True, slack=0.005),
        GateFigure("error_over_update", slack=0.01, relative=True),
        GateFigure("headroom_bytes", "headroom", "bytes", falls=True),
    )
}


@dataclass(frozen=True)
class GatedRows:
    """A list of rows in the JSON of a command.

    Attributes:
        name: of the list, before its figures in an expression.
        path: the keys that lead to the list, each with the key that names a row of it, or "" for
            an object. Without a path the report itself is the only row.
        figures: keys of FIGURES.
        compared: whether these rows are compared with a baseline.
        reference: the name of the row with which the others are compared; gates ignore it.
    """

    name: str
    path: dict[str, str]
    figures: Sequence[str]
    compared: bool = True
    reference: str = ""

    def rows_in(self, data: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """(name, row) of each row of the report, without the reference; "" for the report."""
        rows: list[tuple[str, Any]] = [("", data)]
        for key, naming in self.path.items():
            rows = [(name, row.get(key)) for name, row in rows if isinstance(row, Mapping)]
            if naming:
                rows = [
                    (" ".join(filter(None, (name, str(row.get(naming))))), row)
                    for name, entries in rows
                    for row in (entries if isinstance(entries, list) else ())
                    if isinstance(row, Mapping)
                ]
        for name, row in rows:
            if isinstance(row, Mapping) and (name != self.reference or not name):
                yield name or next(reversed(self.path), ""), row


@dataclass(frozen=True)
class Gated:
    """The rows of a command's JSON that can be limited.

    Attributes:
        rows: the lists. A figure that is named without its list belongs to the first list with it.
        marks: keys by which a report of this command is recognised: no other command has all.
        settings: keys of settings of the user; a baseline with other values gets a note.
        needed: keys of settings, with points between them; a baseline with other values is
            refused, because its figures cannot be compared.
    """

    rows: Sequence[GatedRows]
    marks: tuple[str, ...]
    settings: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()


_OF_RUNS = tuple(_BYTES)[:-1]
_OF_ERRORS = ("sqnr_db", "relative_mse", "bits_per_parameter")
_OF_EVALUATIONS = (*(f.name for f in LIMITED), "nonfinite", "bits_per_parameter", "bytes")
_OF_MERGES = ("kept", "error_over_update")
_INSPECTED = (
    GatedRows("schemes", {"schemes": "scheme"}, (*_OF_ERRORS, "bytes", "saturated")),
    GatedRows("tensors", {"tensors": "name", "errors": "scheme"},
              (*_OF_ERRORS, "max_abs_error", "saturated")),
    GatedRows("memory", {"memory": ""}, _OF_RUNS),
)  # fmt: skip
_WEIGHED = (
    GatedRows("sensitivity", {"sensitivity": ""},
              ("sqnr_db", "relative_error", "kl_sum", "bits_per_parameter", "bytes")),
    # Not compared: another text has another divergence.
    GatedRows("judged", {"sensitivity": "", "judged": "", "assignment": ""}, _OF_EVALUATIONS,
              compared=False),
)  # fmt: skip
_COMPARED = (
    GatedRows("against", {"against": ""}, _OF_ERRORS),
    GatedRows("tensors", {"against": "", "tensors": "name"}, (*_OF_ERRORS[:2], "max_abs_error")),
)
_MERGED = (
    GatedRows("merges", {"merges": "name"}, (*_OF_MERGES, "bits_per_parameter")),
    GatedRows("tensors", {"tensors": "name", "merges": "name"}, _OF_MERGES),
    GatedRows("divergence", {"divergence": "", "merged": "name"},
              ("kl_mean", "bits_per_parameter", "bytes")),
)  # fmt: skip
_ESTIMATED = (
    GatedRows("run", {}, _OF_RUNS),
    GatedRows("fits", {"fits": "gpu"}, ["headroom_bytes"], compared=False),
    GatedRows("phases", {"phases": "name"}, ["allocated_bytes"], compared=False),
    GatedRows("components", {"components": "name"}, ["bytes"], compared=False),
)
_EVALUATED = (GatedRows("rows", {"rows": "scheme"}, _OF_EVALUATIONS, reference="original"),)

#: Command -> the rows of its JSON that can be limited. Other commands have no gates.
GATED: Final = {
    "inspect": Gated(_INSPECTED, ("tensors", "schemes"), ("sample",)),
    "inspect --sensitivity": Gated((*_WEIGHED, *_INSPECTED), ("tensors", "schemes", "sensitivity"),
                                   ("sample",), needed=("sensitivity.weighed_by",)),
    "inspect --headers": Gated(_INSPECTED[2:], ("tensors", "schemes")),
    "inspect --against": Gated(_COMPARED, ("against",), ("sample",)),
    "inspect --adapter": Gated(_MERGED, ("adapter", "merges"), ("sample",)),
    "memory": Gated(_ESTIMATED, ("plan", "peak_allocated_bytes"), ("plan", "gpu")),
    "eval": Gated(_EVALUATED, ("text", "rows"), needed=("text",)),
}  # fmt: skip


@dataclass(frozen=True)
class FallenRow:
    """A row that failed. `expression` is that of `--fail-if`, or `baseline:` and the figure.
    `value` is None if the row has no such figure. `sentence` has no full stop."""

    expression: str
    row: str
    value: float | None
    limit: float | None
    sentence: str

    PRINTED = ("expression", "row", "value", "limit")


@dataclass(frozen=True)
class GateLimit:
    """A row of `rows` fails if `figure comparison amount` is true: one `--fail-if`, or, with the
    figure `before` of a baseline, no worse than that."""

    expression: str
    rows: GatedRows
    figure: GateFigure
    comparison: str
    amount: float
    before: float | None = None

    def fallen(self, name: str, row: Mapping[str, Any]) -> Iterator[FallenRow]:
        """The row, if its figure is missing or beyond the limit."""
        figure, (beyond, word) = self.figure, COMPARISONS[self.comparison]
        value, of_baseline = figure.value_in(row), self.before is not None
        if value is None:
            why = "which the baseline has"
            if not of_baseline:
                why = f"so that '{self.expression}' cannot be checked"
            sentence = f"{name} has no {figure.key}, {why}"
        elif beyond(value, self.amount):
            why = f"--fail-if '{self.expression}'"
            if self.before is not None:
                slack = f"{100 * figure.slack:g}%" if figure.relative else figure.text(figure.slack)
                allowed = f", and {slack} is allowed" if figure.slack else ""
                why = f"the baseline has {figure.text(self.before)}{allowed}"
            texts = figure.text(value), figure.text(self.amount)
            if texts[0] == texts[1] and value != self.amount:
                texts = repr(value), repr(self.amount)
            sentence = f"{name} has {figure.key} {texts[0]}, {word} the limit {texts[1]} ({why})"
        else:
            return
        yield FallenRow(self.expression, name, value, self.amount, sentence)


def _no_worse(rows: GatedRows, before: Mapping[str, Any]) -> Iterator[GateLimit]:
    """The limits that a row of a baseline is for the row of that name."""
    for key in rows.figures:
        figure = FIGURES[key]
        was = figure.value_in(before)
        if was is not None:
            slack = abs(was) * figure.slack if figure.relative else figure.slack
            sign, amount = ("<", was - slack) if figure.falls else (">", was + slack)
            yield GateLimit(f"baseline:{rows.name}.{key}", rows, figure, sign, amount, was)


@dataclass(frozen=True)
class GateVerdict:
    """The result of checking the gates.

    Attributes:
        checked: (gate, number of rows that it was checked on).
        fallen: the rows that failed.
        notes: what the comparison with the baseline leaves out, as sentences.
        missing, new: names of rows that only the baseline has, and that only this report has; None
            without a baseline.
    """

    checked: Sequence[tuple[str, int]]
    fallen: Sequence[FallenRow]
    notes: Sequence[str] = ()
    missing: Sequence[str] | None = None
    new: Sequence[str] | None = None

    @property
    def sentence(self) -> str:
        """The sentence about the rows that failed."""
        said = "; ".join(row.sentence for row in self.fallen[:NAMED])
        more = len(self.fallen) - NAMED
        end = f"; and {more:,} more, which the report lists" if more > 0 else ""
        return f"{self.count}: {said}{end}."

    @property
    def count(self) -> str:
        """How many rows failed, or how many checks if a row failed twice or the report has none."""
        count, rows = len(self.fallen), {row.row for row in self.fallen}
        whole = len(rows) == count and "" not in rows
        return f"{plural(count, 'row' if whole else 'check')} failed"


@dataclass(frozen=True)
class Gates:
    """The gates of one call of `command`. `baseline` is an earlier report, read from `file`."""

    command: str
    limits: tuple[GateLimit, ...]
    file: str = ""
    baseline: Mapping[str, Any] | None = None

    def limits_any(self, rows: str) -> bool:
        """Whether a limit is on the rows of that name."""
        return any(limit.rows.name == rows for limit in self.limits)

    def judge(self, data: Mapping[str, Any]) -> GateVerdict:
        """Checks a report of the command (`data`, as `--json` prints it).

        A missing figure (null, NaN) fails, and so does a gate without any row. Raises UsageError
        for a baseline of another model, or with other settings where these decide.
        """
        checked, fallen, run = [], [], f"the run of {data.get('model')}"
        for limit in self.limits:
            rows = list(limit.rows.rows_in(data))
            checked.append((f"--fail-if '{limit.expression}'", len(rows)))
            if not rows:
                why = f"the report has no row of {limit.rows.name} for '{limit.expression}'"
                fallen.append(FallenRow(limit.expression, "", None, limit.amount, why))
            for name, row in rows:
                fallen += limit.fallen(name or run, row)
        if self.baseline is None:
            return GateVerdict(checked, fallen)
        before, gated = self.baseline, GATED[self.command]
        self._check(before, data)
        missing: list[str] = []
        new: list[str] = []
        compared = 0
        for kind in (rows for rows in gated.rows if rows.compared):
            earlier, now = (dict(kind.rows_in(report)) for report in (before, data))
            missing += [name for name in earlier if name not in now]
            new += [name for name in now if name not in earlier]
            both = [name for name in now if name in earlier]
            compared += len(both)
            for name in both:
                for limit in _no_worse(kind, earlier[name]):
                    fallen += limit.fallen(name or run, now[name])
        checked.append((f"--baseline {self.file}", compared))
        if not compared:
            why = f"no row of this report is in the baseline {quoted(self.file)}"
            fallen.append(FallenRow("baseline", "", None, None, why))
        only = {"of the baseline missing here": missing, "new here": new}
        notes = [f"{plural(len(n), 'row')} {where}: {listed(n)}." for where, n in only.items() if n]
        others = [key for key in gated.settings if before.get(key) != data.get(key)]
        notes += [f"The baseline has another {key}." for key in others]
        return GateVerdict(checked, fallen, notes, missing, new)

    def _check(self, baseline: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        """Raises UsageError if the figures of a baseline cannot be compared."""
        what = f"The baseline {quoted(self.file)}"
        before, now = (
            model.get("id") if isinstance(model := report.get("model"), Mapping) else model
            for report in (baseline, data)
        )
        if before != now:
            raise UsageError(
                f"{what} is of the model {quoted(before)}, and this is {quoted(now)}: compare "
                f"reports of one model."
            )
        for path in GATED[self.command].needed:
            values: list[Any] = [baseline, data]
            for key in path.split("."):
                values = [v.get(key) if isinstance(v, Mapping) else None for v in values]
            if values[0] != values[1]:
                raise UsageError(
                    f"{what} has another {path.rpartition('.')[2]}, so that its figures cannot be "
                    f"compared: make it again."
                )


def read_gates(
    command: str, fail_if: Sequence[str], baseline: str | None, *, schema_version: int
) -> Gates:
    """The gates of `--fail-if` and `--baseline` for a command of GATED.

    Raises UsageError for an expression that does not parse or names an unknown figure, and for a
    baseline that is not a report of this command and schema version.
    """
    limits = tuple(_parse_limit(text, command) for text in fail_if)
    if baseline is None:
        return Gates(command, limits)
    return Gates(command, limits, baseline, _read_baseline(baseline, command, schema_version))


def _parse_limit(text: str, command: str) -> GateLimit:
    """The limit of an expression such as `sqnr<20` or `peak > 22GiB`."""
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{quoted(text)} is no gate: write a figure, one of < <= > >=, and a number, such as "
            f"{_EXAMPLES.get(command, 'sqnr<20')}."
        )
    name, comparison, number, unit = match.groups()
    rows, figure = _find_figure(name.lower(), command)
    factor = _UNITS[figure.unit].get(unit.lower())
    if factor is None and figure.unit == "bytes":
        raise UsageError(
            f"{figure.key} is in bytes: write {quoted(text)} with one of B, KiB, MiB, GiB, TiB "
            f"(GiB is 2^30 bytes), as in {figure.alias or figure.key}>22GiB."
        )
    if factor is None:
        takes = {"dB": "dB", "share": "% or no unit"}.get(figure.unit, "no unit")
        raise UsageError(f"{quoted(text)} has the unit {unit}, and {figure.key} takes {takes}.")
    amount = float(number) * factor
    if not math.isfinite(amount):
        raise UsageError(f"{quoted(text)} has a number that is too large.")
    return GateLimit(text.strip(), rows, figure, comparison, amount)


def _find_figure(name: str, command: str) -> tuple[GatedRows, GateFigure]:
    whose, _, short = name.rpartition(".")
    names: dict[str, str] = {}
    for rows in GATED[command].rows:
        for key in rows.figures:
            alias = FIGURES[key].alias
            if whose in ("", rows.name) and short in (key, alias or key):
                return rows, FIGURES[key]
            full = key if key not in names else f"{rows.name}.{key}"
            names[full] = f"{key} ({alias})" if alias and full == key else full
    known = f"`qtui {command}`, which has {', '.join(names.values())}"
    raise UsageError(f"{quoted(name)} is no figure of {known}.")


def _read_baseline(file: str, command: str, schema_version: int) -> Mapping[str, Any]:
    what, printing = f"The baseline {quoted(file)}", f"`qtui {command} … --json`"
    try:
        with open(file, "rb", opener=without_waiting) as stream:
            raw = stream.read(MAX_BASELINE + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{what} cannot be read: {reason}.") from error
    if len(raw) > MAX_BASELINE:
        raise UsageError(f"{what} is larger than any report: {MAX_BASELINE:,} bytes are read.")
    try:
        data = load_object(raw, what, unique=False)
    except ModelError as error:
        raise UsageError(f"{error} Give what {printing} printed.") from error
    version = data.get("schema_version")
    if version != schema_version:
        raise UsageError(
            f"{what} has schema_version {quoted(version)}, and this qtui writes {schema_version}: "
            f"make it again with {printing}."
        )
    if not all(key in data for key in GATED[command].marks):
        raise UsageError(f"{what} is no report of `qtui {command}`: make it with {printing}.")
    return data
