"""Numbers as people read them. Every face of every report formats through here."""

from __future__ import annotations

import math

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def format_bytes(count: int) -> str:
    """`1536` -> `1.5 KiB`; three significant digits, binary units."""
    size = float(count)
    for unit in _UNITS:
        if size < 999.5 or unit == _UNITS[-1]:
            return f"{count:,} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1024
    raise AssertionError("the last unit always returns")


def format_count(count: int) -> str:
    """`4558080` -> `4.56 M`; exact below ten thousand."""
    if count < 10_000:
        return f"{count:,}"
    size = float(count)
    for unit in ("K", "M", "B", "T"):
        size /= 1000
        if size < 999.5:
            break
    return f"{size:.3g} {unit}"


def format_value(value: float | None, digits: int = 4) -> str:
    """A plain number with `digits` significant digits; `–` for unknown."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.{digits}g}"


def format_decibels(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def format_signed(value: float | None, places: int = 1) -> str:
    return "–" if value is None else f"{value:+.{places}f}"


def format_shape(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape) or "scalar"
