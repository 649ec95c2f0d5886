"""An axis of a picture: the place of a number on it, and the round numbers that are its marks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from qtui.report.faces.plot import ticks
from qtui_core.dataclass import dataclass

#: The most whole numbers that are all marked.
_FEW: Final = 12
#: Room at each end of a padded axis, as a share of its length.
_PAD: Final = 0.04


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`; with `log` these are base-10 logarithms. `marks` are the
    places, 0 to 1, of the numbers written beside it, and their texts."""

    title: str
    low: float
    high: float
    log: bool = False
    marks: tuple[tuple[float, str], ...] = ()

    def place(self, value: float | None) -> float | None:
        """The place of a value: 0 at the low end, 1 at the high end; None for None, NaN and, on a
        logarithmic axis, values that are not above zero."""
        at = _measured(value, self.log)
        return None if at is None else (at - self.low) / (self.high - self.low)


def axis_of(
    title: str,
    values: Iterable[float | None],
    *,
    log: bool = False,
    padded: bool = False,
    whole: bool = False,
) -> Axis:
    """An axis that contains all values.

    Args:
        log: a logarithmic axis, on which only values above zero have a place.
        padded: leaves room at both ends.
        whole: the values are whole numbers, such as widths in bits; a few are all marked.
    """
    known = [at for value in values if (at := _measured(value, log)) is not None]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        # A single number is in the middle.
        half = 0.5 if log or not low else abs(low) / 2
        low, high = low - half, high + half
    elif padded:
        room = _PAD * (high - low)
        low, high = low - room, high + room
    values_seen = sorted(set(known))
    if whole and len(values_seen) <= _FEW and all(at == int(at) for at in values_seen) and not log:
        found = [(at, written(at)) for at in values_seen]
    else:
        found = _powers(low, high) if log else [(v, written(v)) for v in ticks(low, high)]
    marks = tuple(
        ((at - low) / (high - low), text)
        for at, text in found
        if low - 1e-9 * (high - low) <= at <= high + 1e-9 * (high - low)
    )
    return Axis(title, low, high, log, marks)


def exponents(title: str, low: float, high: float) -> Axis:
    """An axis of base-2 logarithms, with the powers of two beside it."""
    return Axis(
        title,
        low,
        high,
        marks=tuple(
            ((at - low) / (high - low), f"2^{at:g}") for at in ticks(low, high) if low <= at <= high
        ),
    )


def written(value: float) -> str:
    """A round number in its shortest form: 0.5, 2000, 1e6."""
    text = f"{value:g}" if abs(value) < 1e5 else f"{value:.6g}"
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else text


def _measured(value: float | None, log: bool) -> float | None:
    if value is None or not math.isfinite(value) or (log and value <= 0):
        return None
    return math.log10(value) if log else value


def _powers(low: float, high: float) -> list[tuple[float, str]]:
    """The powers of ten between two base-10 logarithms; if there are few, also their doubles and
    fivefolds."""
    first, last = math.floor(low), math.ceil(high)
    every = max(1, (last - first) // 8)
    powers = range(first, last + 1)
    inside = [p for p in powers if low <= p <= high]
    if len(inside) > 2:
        return [(float(p), written(10.0**p)) for p in inside if p % every == 0]
    return [
        (p + math.log10(times), written(times * 10.0**p)) for p in powers for times in (1, 2, 5)
    ]
