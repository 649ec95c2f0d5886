"""Where the magnitudes of tensors lie. One histogram of the exponent fields of float32 answers
every format and every scale that is a power of two: their thresholds are powers of two themselves.

What is too large for a format is read off the largest magnitude instead: the largest numbers of
formats are no powers of two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from qtui_core.codec import CodecError
from qtui_core.dataclass import dataclass
from qtui_core.formats.catalog import float_format

#: Values of the exponent field of float32, and what is taken from it. Field 0 is zero and what is
#: below the normal numbers, field 255 is infinite or NaN.
FIELDS: Final = 256
BIAS: Final = 127
#: Above every number of float32.
_BEYOND: Final = 2.0**128
#: How many times larger than today's a gradient may become under a scale that is recommended.
HEADROOM: Final = 8


@dataclass(frozen=True)
class Magnitudes:
    """Magnitudes of float32.

    Attributes:
        counts: `counts[i]` of them, not zero, have the exponent field i: they are in
            [2^(i-127), 2^(i-126)); those of field 0 are below 2^-126, of field 255 not finite.
        zeros: how many are zero.
        largest: the largest that is finite.
    """

    counts: tuple[int, ...]
    zeros: int
    largest: float

    def __post_init__(self) -> None:
        """Raises CodecError for what no float32 can be: they are read from recordings too."""
        if len(self.counts) != FIELDS or min(*self.counts, self.zeros) < 0:
            raise CodecError(Magnitudes, f"counts are {FIELDS} numbers from 0 on")
        if not 0 <= self.largest < _BEYOND:
            raise CodecError(Magnitudes, f"no float32 has the magnitude {self.largest}")

    @property
    def there(self) -> int:
        """How many are not zero, and finite."""
        return sum(self.counts[:-1])

    def below(self, exponent: int) -> float:
        """The share of those that are not zero under 2^exponent."""
        end = min(max(exponent + BIAS, 0), FIELDS - 1)
        return sum(self.counts[:end]) / self.there if self.there else 0.0

    def quantile(self, share: float) -> float | None:
        """The base-2 logarithm of the magnitude that so large a share is under, even within a
        power of two; None where all are zero."""
        wanted = share * self.there
        for field, count in enumerate(self.counts[:-1]):
            if count and wanted <= count:
                return field - BIAS + wanted / count
            wanted -= count
        return None


def together(parts: Iterable[Magnitudes]) -> Magnitudes:
    """All of them."""
    given = list(parts)
    columns = zip(*(part.counts for part in given), strict=True)
    return Magnitudes(
        tuple(map(sum, columns)) if given else (0,) * FIELDS,
        sum(part.zeros for part in given),
        max((part.largest for part in given), default=0.0),
    )


def flushed(format_name: str, magnitudes: Magnitudes, log_scale: int = 0) -> float:
    """The share of those that are not zero that become zero in a format once they are multiplied
    by 2^log_scale: under half of its smallest number. Half of it itself becomes zero too, which a
    histogram does not see."""
    smallest = round(math.log2(float_format(format_name).min_positive))
    return magnitudes.below(smallest - 1 - log_scale)


def best_scale(format_name: str, largest: float, room: float = HEADROOM) -> int | None:
    """The base-2 logarithm of the largest power of two that leaves `room` times the largest
    magnitude within a format; None where that magnitude is zero."""
    if not largest > 0:
        return None
    return math.floor(math.log2(float(float_format(format_name).max) / (room * largest)))
