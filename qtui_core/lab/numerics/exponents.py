"""The picture of magnitudes and formats: a histogram over powers of two, with a bar for the range
of each format. Nothing here imports torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from qtui_core.formats.magnitudes import BIAS, Magnitudes, float_format
from qtui_core.lab.results import ExponentHistogram, FormatSpan

#: The lowest magnitudes, up to this share, are not drawn to scale.
_TAIL: Final = 1e-3


def span(format_name: str) -> FormatSpan:
    """The range of a format, as a bar under a histogram."""
    found = float_format(format_name)
    low, whole, high = (math.log2(x) for x in (found.min_positive, found.min_normal, found.max))
    return FormatSpan(found.title, low, whole, high)


def histogram(
    title: str,
    series: Iterable[tuple[str, Magnitudes]],
    formats: Iterable[str],
    shift: float = 0.0,
) -> ExponentHistogram | None:
    """The picture of magnitudes and formats; None if there are no magnitudes. The few that are far
    below all others are drawn at the left end."""
    kept = [(name, found) for name, found in series if found.there]
    if not kept:
        return None
    first = min(_field_of(found, _TAIL) for _, found in kept)
    last = max(_field_of(found, 1.0) for _, found in kept)
    return ExponentHistogram(
        title,
        first - BIAS,
        tuple(
            (name, (sum(found.counts[: first + 1]), *found.counts[first + 1 : last + 1]))
            for name, found in kept
        ),
        tuple(map(span, formats)),
        shift,
    )


def _field_of(found: Magnitudes, share: float) -> int:
    """The lowest float32 exponent field up to which at least `share` of the magnitudes lie."""
    wanted, passed = share * found.there, 0
    for field, count in enumerate(found.counts[:-1]):
        passed += count
        if count and passed >= wanted:
            return field
    return len(found.counts) - 2
