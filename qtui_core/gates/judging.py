"""Checks a report against gates: which rows fail, and the sentence about them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.gates.figures import FIGURES, GATED, GatedRows, GateFigure
from qtui_core.models.quoting import listed, quoted
from qtui_core.quantities import plural

#: The most rows that a sentence names.
NAMED: Final = 5
#: Larger whole numbers than any in a report.
MOST: Final = 1 << 100
#: Each comparison of an expression, and what it says of a figure that it is true of.
COMPARISONS: Final[Mapping[str, tuple[Callable[[float, float], bool], str]]] = {
    "<": (operator.lt, "under"),
    "<=": (operator.le, "at or under"),
    ">": (operator.gt, "above"),
    ">=": (operator.ge, "at or above"),
}


@dataclass(frozen=True)
class GateLimit:
    """One `--fail-if`: a row fails if `figure comparison amount` is true."""

    expression: str
    rows: GatedRows
    figure: GateFigure
    comparison: str
    amount: float


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
class GateVerdict:
    """The result of checking the gates.

    Attributes:
        checked: (gate, number of rows that it was checked on).
        fallen: the rows that failed.
        notes: what the comparison with the baseline leaves out, as sentences.
        missing, new: names of rows that only the baseline has, and that only this report has; None
            without a baseline.
    """

    checked: tuple[tuple[str, int], ...]
    fallen: tuple[FallenRow, ...]
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] | None = None
    new: tuple[str, ...] | None = None

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
        checked, fallen = [], []
        for limit in self.limits:
            rows = list(limit.rows.found(data))
            checked.append((f"--fail-if '{limit.expression}'", len(rows)))
            if not rows:
                why = f"the report has no row of {limit.rows.name} for '{limit.expression}'"
                fallen.append(FallenRow(limit.expression, "", None, limit.amount, why))
            for name, row in rows:
                fallen += _beyond(limit, name or _run(data), row)
        if self.baseline is None:
            return GateVerdict(tuple(checked), tuple(fallen))
        before, gated = self.baseline, GATED[self.command]
        self._check(before, data)
        missing: list[str] = []
        new: list[str] = []
        compared = 0
        for kind in gated.rows:
            earlier, now = (dict(kind.found(report)) for report in (before, data))
            if kind.compared:
                missing += [name for name in earlier if name not in now]
                new += [name for name in now if name not in earlier]
                for name in [name for name in now if name in earlier]:
                    compared += 1
                    fallen += _beside(kind, name or _run(data), now[name], earlier[name])
        checked.append((f"--baseline {self.file}", compared))
        if not compared:
            why = f"no row of this report is in the baseline {quoted(self.file)}"
            fallen.append(FallenRow("baseline", "", None, None, why))
        notes = [
            f"{plural(len(names), 'row')} {where}: {listed(names)}."
            for names, where in ((missing, "of the baseline missing here"), (new, "new here"))
            if names
        ]
        notes += [
            f"The baseline has another {key}."
            for key in gated.settings
            if before.get(key) != data.get(key)
        ]
        return GateVerdict(tuple(checked), tuple(fallen), tuple(notes), tuple(missing), tuple(new))

    def _check(self, baseline: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        """Raises UsageError if the figures of a baseline cannot be compared."""
        before, now = (
            model.get("id") if isinstance(model := report.get("model"), Mapping) else model
            for report in (baseline, data)
        )
        if before != now:
            raise UsageError(
                f"The baseline {quoted(self.file)} is of the model {quoted(before)}, and this is "
                f"{quoted(now)}: compare reports of one model."
            )
        for path in GATED[self.command].needed:
            values: list[Any] = [baseline, data]
            for key in path.split("."):
                values = [v.get(key) if isinstance(v, Mapping) else None for v in values]
            if values[0] != values[1]:
                raise UsageError(
                    f"The baseline {quoted(self.file)} has another {path.rpartition('.')[2]}, so "
                    f"that its figures cannot be compared: make it again."
                )


def _run(data: Mapping[str, Any]) -> str:
    """The name of the row that is the report itself."""
    return f"the run of {data.get('model')}"


def _figure_of(figure: GateFigure, row: Mapping[str, Any]) -> float | None:
    """The figure of a row; None if it has none. An SQNR without any error is infinite, which is
    null in JSON."""
    high = row.get("high")  # the high end of a range counts
    value = (high if isinstance(high, Mapping) else row).get(figure.key, row.get(figure.key))
    if isinstance(value, float):
        return None if math.isnan(value) else value
    # A baseline may hold a whole number beyond what a float can be.
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < MOST else None
    if figure.key == "sqnr_db" and 0 in (row.get("relative_mse"), row.get("relative_error")):
        return math.inf
    return None


def _beyond(limit: GateLimit, name: str, row: Mapping[str, Any]) -> Iterator[FallenRow]:
    """The row, if its figure is missing or beyond the limit."""
    figure, value = limit.figure, _figure_of(limit.figure, row)
    if value is None:
        why = f"{name} has no {figure.key}, so that '{limit.expression}' cannot be checked"
    elif not COMPARISONS[limit.comparison][0](value, limit.amount):
        return
    else:
        why = _words(figure, name, value, limit.comparison, limit.amount)
        why += f" (--fail-if '{limit.expression}')"
    yield FallenRow(limit.expression, name, value, limit.amount, why)


def _beside(
    rows: GatedRows, name: str, row: Mapping[str, Any], before: Mapping[str, Any]
) -> Iterator[FallenRow]:
    """The figures of a row that are worse than in the baseline."""
    for key in rows.figures:
        figure = FIGURES[key]
        was, now = _figure_of(figure, before), _figure_of(figure, row)
        if was is None:
            continue
        limit, comparison = figure.limit(was), "<" if figure.falls else ">"
        if now is None:
            why = f"{name} has no {key}, which the baseline has"
        elif not COMPARISONS[comparison][0](now, limit):
            continue
        else:
            slack = f", and {figure.slack_text} is allowed" if figure.slack else ""
            why = _words(figure, name, now, comparison, limit)
            why += f" (the baseline has {figure.text(was)}{slack})"
        yield FallenRow(f"baseline:{rows.name}.{key}", name, now, limit, why)


def _words(figure: GateFigure, name: str, value: float, comparison: str, limit: float) -> str:
    texts = figure.text(value), figure.text(limit)
    if texts[0] == texts[1] and value != limit:
        texts = repr(value), repr(limit)
    beyond = COMPARISONS[comparison][1]
    return f"{name} has {figure.key} {texts[0]}, {beyond} the limit {texts[1]}"
