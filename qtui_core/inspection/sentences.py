"""What several reports choose and say alike: the scheme to take, values that are not finite, and
what was read. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from qtui_core.quantities import percent

#: The most bits per parameter of a small model: 4 bits with scales are small.
SMALL_BITS: Final = 5.0


class Sized(Protocol):
    """A model that takes some bytes."""

    @property
    def bits_per_parameter(self) -> float: ...

    @property
    def nbytes(self) -> int: ...


Row = TypeVar("Row", bound=Sized)


def small_ones(rows: Sequence[Row]) -> list[Row]:
    """Those of SMALL_BITS bits per parameter or fewer; all if there are none."""
    return [row for row in rows if row.bits_per_parameter <= SMALL_BITS] or [*rows]


def recommended(
    rows: Sequence[Row], error: Callable[[Row], float], stored: float = math.inf, alike: float = 1.0
) -> Row:
    """The row to take: of those that save something of the `stored` bytes and are small the one of
    least error; of errors that differ at most by the factor `alike` the smallest. Where nothing
    saves or is small, all count."""
    small = small_ones([row for row in rows if row.nbytes < stored] or rows)
    most = alike * min(map(error, small))
    return min((row for row in small if error(row) <= most), key=lambda row: row.nbytes)


def not_finite(count: int, where: str, *, float64: bool = False) -> str:
    """Says that values are not finite, and what to do; `where` follows: "in 'lm_head.weight'"."""
    values, they = ("value is", "it comes") if count == 1 else ("values are", "they come")
    beyond = "NaN, infinite or beyond the range of float32" if float64 else "NaN or infinite"
    return f"{count:,} {values} {beyond} {where}: find out where {they} from first"


def describe_sample(read: int, there: int, which: str = "") -> str:
    """The sentence on how much was read; `which` elements: " of the weights that change"."""
    if read == there:
        return f"Every element{which} was read: {read:,}."
    return (
        f"A sample: {read:,} of {there:,} elements{which} ({percent(read / there)}), in whole rows "
        f"spread evenly; statistics and the scales of tensors and columns are those of the sample, "
        f"and --full reads all."
    )


def in_a_sample(read: int, there: int) -> str:
    """The beginning of a sentence that is about a sample; "" for whole tensors."""
    return "" if read == there else f"In a sample of {percent(read / there)} of the elements: "
