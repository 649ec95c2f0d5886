"""Reads the gates of a command: the expressions of `--fail-if`, and the file of `--baseline`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from qtui_core.errors import ModelError, UsageError
from qtui_core.files import without_waiting
from qtui_core.gates.figures import FIGURES, GATED, GatedRows, GateFigure
from qtui_core.gates.judging import GateLimit, Gates
from qtui_core.models.files.jsontext import load_object
from qtui_core.models.quoting import quoted
from qtui_core.quantities import BINARY_UNITS

#: Files of more bytes are not read as a baseline: no report is as large.
MAX_BASELINE: Final = 256 << 20

_EXPRESSION: Final = re.compile(
    r"\s*([a-z][a-z0-9_.]*)\s*(<=|>=|<|>)\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)"
    r"\s*([a-z%]*)\s*",
    re.IGNORECASE,
)
#: Examples for the error about an expression that does not parse.
_EXAMPLES: Final = {"memory": "peak>22GiB", "inspect --headers": "peak>22GiB", "eval": "kl>0.01"}


def read_gates(
    command: str, fail_if: Sequence[str], baseline: str | None, *, schema_version: int
) -> Gates:
    """The gates of `--fail-if` and `--baseline` for a command of GATED.

    Raises UsageError for an expression that does not parse or names an unknown figure, and for a
    baseline that is not a report of this command and schema version.
    """
    limits = tuple(parse_limit(text, command) for text in fail_if)
    if baseline is None:
        return Gates(command, limits)
    return Gates(command, limits, baseline, _read_baseline(baseline, command, schema_version))


def parse_limit(text: str, command: str) -> GateLimit:
    """The limit of an expression such as `sqnr<20` or `peak > 22GiB`.

    Raises UsageError, which names the figures of the command, if it does not parse.
    """
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{quoted(text)} is no gate: write a figure, one of < <= > >=, and a number, such as "
            f"{_EXAMPLES.get(command, 'sqnr<20')}."
        )
    name, comparison, number, unit = match.groups()
    rows, figure = _find_figure(name.lower(), command)
    amount = float(number) * _factor(figure, unit, text)
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
    known = ", ".join(names.values())
    raise UsageError(f"{quoted(name)} is no figure of `qtui {command}`, which has {known}.")


def _factor(figure: GateFigure, unit: str, text: str) -> float:
    """The factor for the number of an expression with this unit."""
    if figure.unit == "bytes":
        if unit.lower() in BINARY_UNITS:
            return BINARY_UNITS[unit.lower()]
        raise UsageError(
            f"{figure.key} is in bytes: write {quoted(text)} with one of B, KiB, MiB, GiB, TiB "
            f"(GiB is 2^30 bytes), as in {figure.alias or figure.key}>22GiB."
        )
    if not unit or unit.lower() == figure.unit.lower() == "db":
        return 1.0
    if unit == "%" and figure.unit == "share":
        return 0.01
    unit_of = {"dB": "dB", "share": "% or no unit"}.get(figure.unit, "no unit")
    raise UsageError(f"{quoted(text)} has the unit {unit}, and {figure.key} takes {unit_of}.")


def _read_baseline(file: str, command: str, schema_version: int) -> Mapping[str, Any]:
    what = f"The baseline {quoted(file)}"
    try:
        with open(file, "rb", opener=without_waiting) as stream:
            raw = stream.read(MAX_BASELINE + 1)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{what} cannot be read: {getattr(error, 'strerror', None) or error}."
        ) from error
    if len(raw) > MAX_BASELINE:
        raise UsageError(f"{what} is larger than any report: {MAX_BASELINE:,} bytes are read.")
    try:
        data = load_object(raw, what, unique=False)
    except ModelError as error:
        raise UsageError(f"{error} Give what `qtui {command} … --json` printed.") from error
    version = data.get("schema_version")
    if version != schema_version:
        raise UsageError(
            f"{what} has schema_version {quoted(version)}, and this qtui writes {schema_version}: "
            f"make it again with `qtui {command} … --json`."
        )
    if not all(key in data for key in GATED[command].marks):
        raise UsageError(
            f"{what} is no report of `qtui {command}`: make it with `qtui {command} … --json`."
        )
    return data
