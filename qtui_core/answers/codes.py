"""Where the bits of a scheme go, schemes at the same bits, and how NF4 is made."""

from __future__ import annotations

import math
from fractions import Fraction

from qtui_core.dataclass import dataclass
from qtui_core.schemes.scheme import Scheme


@dataclass(frozen=True)
class BitPart:
    """`count` numbers of `bits` bits each, kept one after another and filled up to a whole
    byte at the end."""

    name: str
    count: int
    bits: int

    @property
    def bytes(self) -> int:
        return -(-self.count * self.bits // 8)


@dataclass(frozen=True)
class BitBudget:
    """What is stored of a tensor of `shape` under `scheme`. Parts that the scheme does not
    have are left out; the codes are the first."""

    scheme: Scheme
    shape: tuple[int, ...]
    parts: tuple[BitPart, ...]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def bits_per_parameter(self) -> Fraction:
        """Bits for each element, exact; those of a code for an empty tensor."""
        if not math.prod(self.shape):
            return Fraction(self.scheme.bits)
        return sum((self.share(part) for part in self.parts), Fraction(0))

    @property
    def overhead(self) -> Fraction:
        """Bits for each element beyond those of its code."""
        return self.bits_per_parameter - self.scheme.bits

    def share(self, part: BitPart) -> Fraction:
        """Bits of a part for each element, exact; 0 for an empty tensor."""
        count = math.prod(self.shape)
        return Fraction(8 * part.bytes, count) if count else Fraction(0)


@dataclass(frozen=True)
class EqualBits:
    """A scheme with the group size that comes nearest to the wanted bits per parameter.

    Attributes:
        asked: the scheme as it was.
        scheme: the scheme to compare; `asked` itself where it has no size to turn.
        bits: its exact bits per parameter.
        difference: `bits` less the wanted ones.
        equal: whether they are equal to within the tolerance.
        note: why not, a clause without a full stop; empty where they are.
    """

    asked: Scheme
    scheme: Scheme
    bits: Fraction
    difference: Fraction
    equal: bool
    note: str


@dataclass(frozen=True)
class NF4Level:
    """One level of NF4 through the steps of its construction. `code` is its place in ascending
    order.

    Attributes:
        probability: P(X < quantile) of a standard normal X; None for zero, which is added.
        quantile: of that probability, in float64.
        derived: the quantile over the largest one, in float64.
        published: the float32 constant that libraries have.
        ulps: by how many float32 numbers the rounded `derived` lies above `published`.
        float32_ulps: the same when every step is rounded to float32, as in the program that
            made the constants.
    """

    code: int
    probability: float | None
    quantile: float
    derived: float
    published: float
    ulps: int
    float32_ulps: int


@dataclass(frozen=True)
class NF4Step:
    """One step of the construction. `column` names what it computes: a field of NF4Level."""

    title: str
    sentence: str
    column: str


@dataclass(frozen=True)
class NF4Construction:
    """The levels in ascending order, and what is done to get them in the order it is done."""

    offset: float
    levels: tuple[NF4Level, ...]
    steps: tuple[NF4Step, ...]

    @property
    def exact(self) -> int:
        """How many of the constants float64 arithmetic gives to the last bit."""
        return sum(level.ulps == 0 for level in self.levels)
