"""How a number between two levels takes one of them: to the nearest, toward zero, or at random
in proportion.

Each rounding knows three arithmetics, those of the formats: whole steps (integers), float32
words with bits cut off their end (BF16, TF32), and sums that hold the significand in their low
bits (narrower floats, see `NarrowRounder`). All work in place on flat arrays of a segment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from qtui_core.quant.segments.elements import Float32
from qtui_core.quant.segments.parallel import CACHED, Scratch
from qtui_core.quant.segments.stochastic import FRACTION_BITS, Words, random_fractions, random_words
from qtui_core.schemes.scheme import Scheme

#: Mean squared error of values spread evenly over a step, in squares of it.
ROUNDING_NOISE = {"nearest": 1 / 12, "truncate": 1 / 3, "stochastic": 1 / 6}


class SchemeRounding(ABC):
    """One of the roundings of a scheme."""

    @abstractmethod
    def to_integers(self, values: Float32, scratch: Scratch) -> None:
        """Each value becomes a whole number. Values that are whole stay."""

    @abstractmethod
    def add_to_words(self, words: Words, dropped: int, ties_away: bool, scratch: Scratch) -> None:
        """Adds to words of magnitudes what makes cutting off their `dropped` last bits round."""

    @abstractmethod
    def correct_sums(
        self, total: Float32, addend: Float32, magnitude: Float32, scratch: Scratch
    ) -> None:
        """Moves `total`, which is magnitude + addend rounded to nearest even, by one unit of its
        last place where this rounding differs. `addend` is a power of two at least twice as
        large as the magnitude, so a unit of the last place is 2^-23 of it."""


class Nearest(SchemeRounding):
    """To the nearest, on a tie to the even one."""

    def to_integers(self, values: Float32, scratch: Scratch) -> None:
        np.rint(values, out=values)

    def add_to_words(self, words: Words, dropped: int, ties_away: bool, scratch: Scratch) -> None:
        half = 1 << dropped - 1
        if ties_away:
            words += np.uint32(half)
            return
        odd = scratch.take("odd", words.size, np.uint32)
        np.right_shift(words, dropped, out=odd)
        odd &= np.uint32(1)
        words += odd
        words += np.uint32(half - 1)

    def correct_sums(
        self, total: Float32, addend: Float32, magnitude: Float32, scratch: Scratch
    ) -> None:
        pass


class Truncate(SchemeRounding):
    """Toward zero."""

    def to_integers(self, values: Float32, scratch: Scratch) -> None:
        np.trunc(values, out=values)

    def add_to_words(self, words: Words, dropped: int, ties_away: bool, scratch: Scratch) -> None:
        pass

    def correct_sums(
        self, total: Float32, addend: Float32, magnitude: Float32, scratch: Scratch
    ) -> None:
        for _, (part, power, exact) in _pieces(total, addend, magnitude):
            rounded = np.subtract(part, power, out=scratch.take("rounded", part.size, np.float32))
            above = np.greater(rounded, exact, out=scratch.take("moved", part.size, np.bool_))
            part.view(np.uint32)[...] -= above


class Stochastic(SchemeRounding):
    """Up or down at random, up with the probability that is the part of the step below the
    value, to within 2^-24: unbiased, whole steps never move."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def to_integers(self, values: Float32, scratch: Scratch) -> None:
        for at, (part,) in _pieces(values):
            uniform = random_fractions(self.seed, scratch.start + at, part.size, scratch)
            below = np.floor(part, out=scratch.take("below", part.size, np.float32))
            # Just below zero the difference rounds to 1: up, as it is for all but 2^-25.
            part -= below
            part *= np.float32(1 << FRACTION_BITS)
            up = np.less(uniform, part, out=scratch.take("moved", part.size, np.bool_))
            np.add(below, up, out=part)

    def add_to_words(self, words: Words, dropped: int, ties_away: bool, scratch: Scratch) -> None:
        for at, (part,) in _pieces(words):
            random = random_words(self.seed, scratch.start + at, part.size, scratch)
            random >>= np.uint32(32 - dropped)
            part += random

    def correct_sums(
        self, total: Float32, addend: Float32, magnitude: Float32, scratch: Scratch
    ) -> None:
        for at, (part, power, exact) in _pieces(total, addend, magnitude):
            uniform = random_fractions(self.seed, scratch.start + at, part.size, scratch)
            rest = np.subtract(part, power, out=scratch.take("rounded", part.size, np.float32))
            np.subtract(exact, rest, out=rest)
            # In 2^-24 of the last place, which is 2^-23 of the power: exact, as the power is one
            # of two.
            rest /= power
            rest *= np.float32(2.0 ** (FRACTION_BITS + 23))
            moved = scratch.take("moved", part.size, np.bool_)
            words = part.view(np.uint32)
            # The part of the step below the value is `rest` where it was rounded down and 1 more
            # where it was rounded up. It ends up above where it is more than the random number.
            words += np.less(uniform, rest, out=moved)
            uniform -= np.float32(1 << FRACTION_BITS)
            words -= np.greater_equal(uniform, rest, out=moved)


NEAREST = Nearest()
TRUNCATE = Truncate()


def rounding_of(scheme: Scheme) -> SchemeRounding:
    """The rounding that a scheme asks for."""
    match scheme.rounding:
        case "truncate":
            return TRUNCATE
        case "stochastic":
            return Stochastic(scheme.seed)
        case _:
            return NEAREST


def _pieces(*arrays: Float32 | Words) -> Iterator[tuple[int, tuple[Float32, ...]]]:
    """Where a piece begins, and it of each array: as much as stays in the cache while several
    small steps go over it."""
    for start in range(0, arrays[0].size, CACHED):
        yield start, tuple(a[start : start + CACHED] for a in arrays)  # type: ignore[misc]
