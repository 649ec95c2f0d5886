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


def histogram(
    title: str,
    series: Iterable[tuple[str, Magnitudes]],
    formats: Iterable[str],
    shift: float = 0.0,
) -> ExponentHistogram | None:
    """The picture of magnitudes and formats; None if there are no magnitudes. The few that are far
    below all others are drawn at the left end."""
    kept = [(name, sizes) for name, sizes in series if sizes.there]
    if not kept:
        return None
    first = min(_field_of(sizes, _TAIL) for _, sizes in kept)
    last = max(_field_of(sizes, 1.0) for _, sizes in kept)
    counts = tuple(
        (name, (sum(sizes.counts[: first + 1]), *sizes.counts[first + 1 : last + 1]))
        for name, sizes in kept
    )
    ranges = [(f.title, f.min_positive, f.min_normal, f.max) for f in map(float_format, formats)]
    spans = tuple(FormatSpan(name, *map(math.log2, ends)) for name, *ends in ranges)
    return ExponentHistogram(title, first - BIAS, counts, spans, shift)


def _field_of(sizes: Magnitudes, share: float) -> int:
    """The lowest float32 exponent field up to which at least `share` of the magnitudes lie."""
    wanted, passed = share * sizes.there, 0
    for field, count in enumerate(sizes.counts[:-1]):
        passed += count
        if count and passed >= wanted:
            return field
    return len(sizes.counts) - 2
