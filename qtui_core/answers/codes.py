"""The stored bits of a scheme, schemes with equal bits, and how NF4 is constructed."""

from __future__ import annotations

import math
from fractions import Fraction

from qtui_core.dataclass import dataclass
from qtui_core.schemes.scheme import Scheme


@dataclass(frozen=True)
class BitPart:
    """`count` numbers of `bits` bits each, stored one after another and padded to a whole byte."""

    name: str
    count: int
    bits: int

    @property
    def bytes(self) -> int:
        return -(-self.count * self.bits // 8)


@dataclass(frozen=True)
class BitBudget:
    """What is stored of a tensor of `shape` under `scheme`. The first part is the codes; parts that
    the scheme does not have are left out."""

    scheme: Scheme
    shape: tuple[int, ...]
    parts: tuple[BitPart, ...]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def bits_per_parameter(self) -> Fraction:
        """Stored bits per element, exact; for an empty tensor the bits of a code."""
        count = math.prod(self.shape)
        return Fraction(8 * self.bytes, count) if count else Fraction(self.scheme.bits)

    @property
    def overhead(self) -> Fraction:
        """Stored bits per element besides its code."""
        return self.bits_per_parameter - self.scheme.bits

    def share(self, part: BitPart) -> Fraction:
        """Bits of one part per element, exact; 0 for an empty tensor."""
        count = math.prod(self.shape)
        return Fraction(8 * part.bytes, count) if count else Fraction(0)


@dataclass(frozen=True)
class EqualBits:
    """A scheme with the group size that comes nearest to the wanted bits per parameter.

    Attributes:
        original: the scheme before the group size was changed.
        scheme: the scheme to compare; `original` itself if it has no group size.
        bits: its exact bits per parameter.
        difference: `bits` less the wanted bits.
        equal: whether they are equal within the tolerance.
        note: why they are not equal, a clause without a full stop; empty if they are.
    """

    original: Scheme
    scheme: Scheme
    bits: Fraction
    difference: Fraction
    equal: bool
    note: str


@dataclass(frozen=True)
class NF4Level:
    """One level of NF4 at each step of its construction. `code` is its place in ascending order.

    Attributes:
        probability: P(X < quantile) of a standard normal X; None for zero, which is added.
        quantile: the quantile for that probability, in float64.
        derived: the quantile divided by the largest one, in float64.
        published: the float32 constant in libraries.
        ulps: how many float32 numbers the rounded `derived` is above `published`.
    """

    code: int
    probability: float | None
    quantile: float
    derived: float
    published: float
    ulps: int


@dataclass(frozen=True)
class NF4Step:
    """One step of the construction. `column` is the field of NF4Level that it computes."""

    title: str
    sentence: str
    column: str


@dataclass(frozen=True)
class NF4Construction:
    """The levels in ascending order, and the steps in the order in which they are done."""

    offset: float
    levels: tuple[NF4Level, ...]
    steps: tuple[NF4Step, ...]

    @property
    def exact(self) -> int:
        """How many of the published constants float64 arithmetic reproduces exactly."""
        return sum(level.ulps == 0 for level in self.levels)
