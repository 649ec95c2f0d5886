"""Formats numbers as text, for all reports and screens."""

from __future__ import annotations

import math

from qtui_core.quantities import db_text


def format_value(value: float | None, digits: int = 4) -> str:
    """A number with `digits` significant digits; `–` for None and NaN."""
    if value is None or math.isnan(value):
        return "–"
    if 1 <= abs(value) < 1e6:
        # "1000" and not "1e+03": an exponent only where it is shorter.
        digits = max(digits, len(str(int(abs(value)))))
    return f"{value:.{digits}g}"


def format_decibels(value: float | None) -> str:
    """Decibels with one decimal place, never "-0.0"; `–` for None."""
    return "–" if value is None else db_text(value)


def format_signed(value: float | None) -> str:
    """Decibels with a sign and one decimal place; `–` for None."""
    return "–" if value is None else f"{round(value, 1) + 0.0:+.1f}"


def format_shape(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape) or "scalar"
