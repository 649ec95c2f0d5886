"""Formats numbers as text, for all reports and screens."""

from __future__ import annotations

import math

from qtui_core.quantities import format_bytes, format_count

__all__ = [
    "format_bytes",
    "format_count",
    "format_decibels",
    "format_shape",
    "format_signed",
    "format_value",
    "plural",
]


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
    return "–" if value is None else f"{round(value, 1) + 0.0:.1f}"


def format_signed(value: float | None, places: int = 1) -> str:
    return "–" if value is None else f"{round(value, places) + 0.0:+.{places}f}"


def format_shape(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape) or "scalar"


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun: `1 tensor`, `2 tensors`. `many` is the plural if it is irregular."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
