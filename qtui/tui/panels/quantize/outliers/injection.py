"""An injected outlier as text that users type."""

from __future__ import annotations

import re
from dataclasses import replace

from qtui.engine.requests import Injection
from qtui_core.errors import UsageError

EXAMPLES = "for example 12.5, 20 sigma, -3 at 5,40 or 20 sigma at column 5"
LARGEST = 3.4028234663852886e38
"""The largest float32; tensors are read as float32."""

_TEXT = re.compile(
    r"\s*(?P<value>[-+]?[0-9.]+(?:e[-+]?[0-9]+)?)\s*(?P<sigma>sigmas?|s|σ)?"
    r"(?:\s*(?:at|@)\s*(?P<place>.+?))?\s*",
    re.IGNORECASE,
)
_CELL = re.compile(
    r"\(?\s*(?:row\s*)?([0-9]{1,18})\s*[,x ]\s*(?:col(?:umn)?\s*)?([0-9]{1,18})\s*\)?", re.I
)
_COLUMN = re.compile(r"col(?:umn)?\s*([0-9]{1,18})", re.I)


def parse_injection(
    text: str, matrix: tuple[int, int], std: float | None, before: Injection | None
) -> Injection:
    """Reads a typed outlier: a value or a number of standard deviations (`20 sigma`), and
    optionally after `at` an element (`5,40`) or a column (`column 5`).

    Args:
        matrix: the rows and columns of the tensor.
        std: the standard deviation of the tensor without an outlier; None while not known.
        before: the current outlier. If the text names no place, its place is kept; without one it
            is the middle of the tensor.

    Raises UsageError for any other text, and for a place outside the tensor.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise UsageError(f"{text.strip() or 'Nothing'!r} is no outlier: type {EXAMPLES}.")
    try:
        value = float(match["value"])
    except ValueError:
        raise UsageError(f"{match['value']!r} is no number: type {EXAMPLES}.") from None
    if match["sigma"]:
        if not std:
            raise UsageError(
                "The standard deviation of this tensor is 0 or not known yet: type a value."
            )
        value *= std
    if not abs(value) <= LARGEST:
        raise UsageError(f"{value:g} is too large: tensors are read as float32, up to 3.4e38.")
    row, column = _place(match["place"], matrix, before)
    return Injection(column=column, value=value, row=row)


def scaled(injection: Injection, factor: float) -> Injection:
    """The outlier with its value multiplied by `factor`. Raises UsageError if that is no normal
    float32."""
    value = injection.value * factor
    if not 1e-38 <= abs(value) <= LARGEST:
        raise UsageError(f"The outlier cannot become {value:g}, which is not a normal float32.")
    return replace(injection, value=value)


def injection_text(injection: Injection) -> str:
    """A text that `parse_injection` reads as this outlier."""
    place = f"column {injection.column}"
    if injection.row is not None:
        place = f"{injection.row},{injection.column}"
    return f"{injection.value:.6g} at {place}"


def _place(
    text: str | None, matrix: tuple[int, int], before: Injection | None
) -> tuple[int | None, int]:
    rows, columns = matrix
    if text is None:
        if before is not None:
            return before.row, before.column
        return rows // 2, columns // 2
    cell, whole = _CELL.fullmatch(text), _COLUMN.fullmatch(text)
    row: int | None
    if cell is not None:
        row, column = int(cell[1]), int(cell[2])
    elif whole is not None:
        row, column = None, int(whole[1])
    else:
        raise UsageError(f"{text!r} is no place: type ROW,COLUMN or column COLUMN.")
    if (row is not None and row >= rows) or column >= columns:
        raise UsageError(
            f"The tensor has rows 0 to {rows - 1:,} and columns 0 to {columns - 1:,}; there is no "
            f"{text}."
        )
    return row, column


def place_text(injection: Injection) -> str:
    """The place of the outlier: `(5, 40)` or `column 5`."""
    if injection.row is None:
        return f"column {injection.column:,}"
    return f"({injection.row:,}, {injection.column:,})"


def sigmas_text(injection: Injection, std: float | None) -> str:
    """The value as standard deviations, "20 sigma"; empty if these are not known."""
    if not std:
        return ""
    sigmas = abs(injection.value) / std
    return f"{sigmas:,.0f} sigma" if 10 <= sigmas < 1e6 else f"{sigmas:.2g} sigma"
