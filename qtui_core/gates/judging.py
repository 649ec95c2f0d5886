"""Checks a report against gates: which rows fail, and the sentence about them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.gates.figures import FIGURES, GATED, INSTEAD, GatedRows, GateFigure
from qtui_core.models.quoting import listed, quoted
from qtui_core.quantities import plural

#: The most rows that a sentence names.
NAMED: Final = 5
#: Larger whole numbers than any in a report.
MOST: Final = 1 << 100
_WORDS: Final = {"<": "under", "<=": "at or under", ">": "above", ">=": "at or above"}


@dataclass(frozen=True)
class GateLimit:
    """One `--fail-if`: a row fails if `figure comparison amount` is true."""

    expression: str
    rows: GatedRows
    figure: GateFigure
    comparison: str
    amount: float

    def falls(self, value: float) -> bool:
        below, at = value < self.amount, value == self.amount
        if self.comparison[0] == "<":
            return below or (at and "=" in self.comparison)
        return not below and (not at or "=" in self.comparison)


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
        told = "; ".join(row.sentence for row in self.fallen[:NAMED])
        more = len(self.fallen) - NAMED
        end = f"; and {more:,} more, which the report lists" if more > 0 else ""
        return f"{self.count}: {told}{end}."

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
        for a baseline of another model, and for a figure that the report has in another unit.
        """
        checked, fallen = [], []
        for limit in self.limits:
            rows = list(limit.rows.found(data))
            checked.append((f"--fail-if '{limit.expression}'", len(rows)))
            for _, each in rows:
                _refuse_another_unit(limit, each)
            if not rows:
                told = f"the report has no row of {limit.rows.name} for '{limit.expression}'"
                fallen.append(FallenRow(limit.expression, "", None, limit.amount, told))
            fallen += [row for name, each in rows for row in _held(limit, name or _run(data), each)]
        if self.baseline is None:
            return GateVerdict(tuple(checked), tuple(fallen))
        return self._with_baseline(data, self.baseline, checked, fallen)

    def _with_baseline(
        self,
        data: Mapping[str, Any],
        baseline: Mapping[str, Any],
        checked: list[tuple[str, int]],
        fallen: list[FallenRow],
    ) -> GateVerdict:
        gated = GATED[self.command]
        _refuse_another_model(self.file, baseline, data)
        for key in gated.needed:
            if _inside(baseline, key) != _inside(data, key):
                raise UsageError(
                    f"The baseline {quoted(self.file)} has another {key.rpartition('.')[2]}, so "
                    f"that its figures cannot be compared: make it again."
                )
        missing: list[str] = []
        new: list[str] = []
        compared = 0
        for rows in gated.rows:
            if not rows.compared:
                continue
            before, now = dict(rows.found(baseline)), dict(rows.found(data))
            missing += [name for name in before if name not in now]
            new += [name for name in now if name not in before]
            for name, row in now.items():
                if name in before:
                    compared += 1
                    label = name or _run(data)
                    fallen += _beside(rows, label, row, before[name])
        checked.append((f"--baseline {self.file}", compared))
        if not compared:
            told = f"no row of this report is in the baseline {quoted(self.file)}"
            fallen.append(FallenRow("baseline", "", None, None, told))
        notes = [
            f"{plural(len(names), 'row')} {where}: {listed(names)}."
            for names, where in ((missing, "of the baseline missing here"), (new, "new here"))
            if names
        ]
        notes += [
            f"The baseline has another {key}: {_difference(baseline.get(key), data.get(key))}."
            for key in gated.settings
            if baseline.get(key) != data.get(key)
        ]
        return GateVerdict(tuple(checked), tuple(fallen), tuple(notes), tuple(missing), tuple(new))


def _run(data: Mapping[str, Any]) -> str:
    """The name of the row that is the report itself."""
    return f"the run of {data.get('model')}"


def _difference(before: Any, now: Any) -> str:
    """The differences between two values of a setting, as part of a sentence."""
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return f"{quoted(before)}, here {quoted(now)}"
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    return ", ".join(f"{key} {before.get(key)}, here {now.get(key)}" for key in keys[:NAMED])


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


def _held(limit: GateLimit, name: str, row: Mapping[str, Any]) -> Iterator[FallenRow]:
    figure, value = limit.figure, _figure_of(limit.figure, row)
    if value is None:
        told = f"{name} has no {figure.key}, so that '{limit.expression}' cannot be checked"
    elif not limit.falls(value):
        return
    else:
        told = _told(figure, name, value, limit.comparison, limit.amount)
        told += f" (--fail-if '{limit.expression}')"
    yield FallenRow(limit.expression, name, value, limit.amount, told)


def _told(figure: GateFigure, name: str, value: float, comparison: str, limit: float) -> str:
    texts = figure.text(value), figure.text(limit)
    if texts[0] == texts[1] and value != limit:
        texts = repr(value), repr(limit)
    return f"{name} has {figure.key} {texts[0]}, {_WORDS[comparison]} the limit {texts[1]}"


def _beside(
    rows: GatedRows, name: str, row: Mapping[str, Any], before: Mapping[str, Any]
) -> Iterator[FallenRow]:
    """The figures of a row that are worse than in the baseline."""
    for key in rows.figures:
        figure = FIGURES[key]
        was, now = _figure_of(figure, before), _figure_of(figure, row)
        if was is None:
            continue
        limit, expression = figure.limit(was), f"baseline:{rows.name}.{key}"
        if now is None:
            told = f"{name} has no {key}, which the baseline has"
        elif now < limit if figure.falls else now > limit:
            told = _told(figure, name, now, "<" if figure.falls else ">", limit)
            slack = f", and {figure.slack_text} is allowed" if figure.slack_text else ""
            told += f" (the baseline has {figure.text(was)}{slack})"
        else:
            continue
        yield FallenRow(expression, name, now, limit, told)


def _refuse_another_unit(limit: GateLimit, row: Mapping[str, Any]) -> None:
    other = INSTEAD.get(limit.figure.key)
    if other is not None and row.get(limit.figure.key) is None and row.get(other) is not None:
        raise UsageError(
            f"'{limit.expression}' cannot be checked: the report has {other} and no "
            f"{limit.figure.key}, as its objective is {row.get('weighed_by')}. Limit {other}, or "
            f"choose another --objective."
        )


def _inside(data: Any, path: str) -> Any:
    """What a report has at keys with points between them; None if it has nothing there."""
    for key in path.split("."):
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def _refuse_another_model(file: str, baseline: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    before, now = _model_of(baseline), _model_of(data)
    if before != now:
        raise UsageError(
            f"The baseline {quoted(file)} is of the model {quoted(before)}, and this is "
            f"{quoted(now)}: compare reports of one model."
        )


def _model_of(data: Mapping[str, Any]) -> object:
    model = data.get("model")
    return model.get("id") if isinstance(model, Mapping) else model
