"""The roundings of a scheme: to nearest, toward zero, or stochastically, which rounds up with a
probability equal to the fraction of the step.

Each rounding works in three arithmetics, because formats are rounded in three ways: to whole
numbers (integers), by cutting bits off float32 words (BF16, TF32), and by adding a number that
leaves the significand in the low bits of the sum (narrower floats, see `NarrowRounder`). All work
in place on the flat arrays of a segment.

The random bits of an element depend on its position only. So the results do not depend on threads,
on segments or on how a file is read. They are a hash of the element's index with two keys. The hash
is `triple32` of Chris Wellons (hash-prospector, 2018, public domain): three multiplications and
four shifts of a 32-bit word, found by a search for the least avalanche bias. (The shorter
`lowbias32` does not suffice: its words for elements 4096 apart, which are often neighbours in a
column, depend on each other.) The hash is a bijection, so every word occurs once in 2^32 elements.
The keys, one applied before and one in the middle, come from SplitMix64 (Steele, Lea and Flood,
OOPSLA 2014) of the seed, so that the streams of two seeds are not shifts of each other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from qtui_core.quant.segments.elements import Float32
from qtui_core.quant.segments.parallel import CACHED, Scratch
from qtui_core.schemes.scheme import Scheme

Words: TypeAlias = npt.NDArray[np.uint32]

#: Bits of the uniform numbers that fractions are compared with: the significand of a float32 holds
#: them exactly.
FRACTION_BITS = 24
_WORD = 1 << 32
_MASK64 = (1 << 64) - 1
_FACTORS = np.uint32(0xED5AD4BB), np.uint32(0xAC4C1B51), np.uint32(0x31848BAB)
_COUNT: Words = np.arange(CACHED, dtype=np.uint32)
_COUNT.flags.writeable = False


def random_words(seed: int, start: int, count: int, scratch: Scratch) -> Words:
    """Uniform random words, uint32 `[count]`, of the elements from `start` of the flattened tensor
    on, in scratch memory. `count` is at most CACHED."""
    words: Words = scratch.take("random", count, np.uint32)
    turn, low = divmod(start, _WORD)
    here = min(count, _WORD - low)
    _hash(_keys(seed, turn), low, words[:here], scratch)
    if here < count:
        _hash(_keys(seed, turn + 1), 0, words[here:], scratch)
    return words


def random_fractions(
    seed: int, start: int, count: int, scratch: Scratch
) -> npt.NDArray[np.float32]:
    """The same words as whole numbers, float32 `[count]`, uniform from 0 to 2^24 - 1."""
    words = random_words(seed, start, count, scratch)
    words >>= np.uint32(32 - FRACTION_BITS)
    whole: Float32 = scratch.take("fractions", count, np.float32)
    np.copyto(whole, words.view(np.int32), casting="unsafe")
    return whole


def _hash(keys: tuple[int, int], start: int, words: Words, scratch: Scratch) -> None:
    shifted = scratch.take("shifted", words.size, np.uint32)
    np.add(_COUNT[: words.size], np.uint32(start), out=words)
    words ^= np.uint32(keys[0])
    words ^= np.right_shift(words, 17, out=shifted)
    words *= _FACTORS[0]
    words ^= np.right_shift(words, 11, out=shifted)
    words += np.uint32(keys[1])
    words *= _FACTORS[1]
    words ^= np.right_shift(words, 15, out=shifted)
    words *= _FACTORS[2]
    words ^= np.right_shift(words, 14, out=shifted)


def _keys(seed: int, turn: int) -> tuple[int, int]:
    """Two words for a seed and the number of times that the 32-bit counter of elements has wrapped
    around."""
    mixed = _split_mix(_split_mix(seed) + turn)
    return mixed & (_WORD - 1), mixed >> 32


def _split_mix(state: int) -> int:
    state = (state + 0x9E3779B97F4A7C15) & _MASK64
    state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK64
    state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK64
    return state ^ state >> 31


#: Mean squared error of values that are spread evenly over a step, in units of the squared step.
ROUNDING_NOISE = {"nearest": 1 / 12, "truncate": 1 / 3, "stochastic": 1 / 6}


class SchemeRounding(ABC):
    """A rounding of a scheme."""

    @abstractmethod
    def to_integers(self, values: Float32, scratch: Scratch) -> None:
        """Rounds each value to a whole number, in place. Whole numbers do not change."""

    @abstractmethod
    def add_to_words(self, words: Words, dropped: int, ties_away: bool, scratch: Scratch) -> None:
        """Adds a number to the words of magnitudes, in place, so that cutting off their `dropped`
        lowest bits afterwards rounds them."""

    @abstractmethod
    def correct_sums(
        self, total: Float32, addend: Float32, magnitude: Float32, scratch: Scratch
    ) -> None:
        """Moves `total` by one unit in its last place where this rounding differs from rounding to
        nearest, in place. `total` is magnitude + addend rounded to nearest even. `addend` is a
        power of two at least twice as large as the magnitude, so that a unit in the last place is
        2^-23 of it."""


class Nearest(SchemeRounding):
    """To the nearest number; of two equally near ones, to the even one."""

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
    """Up or down at random. The probability of rounding up is the fraction of the step below the
    value, to within 2^-24, so that the expectation is the value. Whole numbers never move."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def to_integers(self, values: Float32, scratch: Scratch) -> None:
        for at, (part,) in _pieces(values):
            uniform = random_fractions(self.seed, scratch.start + at, part.size, scratch)
            below = np.floor(part, out=scratch.take("below", part.size, np.float32))
            # Just below zero the difference rounds to 1, so it rounds up, as it would with all
            # probability but 2^-25.
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
            # In units of 2^-24 of the last place, which is 2^-23 of the power. This is exact, since
            # the power is a power of two.
            rest /= power
            rest *= np.float32(2.0 ** (FRACTION_BITS + 23))
            moved = scratch.take("moved", part.size, np.bool_)
            words = part.view(np.uint32)
            # The fraction of the step below the value is `rest` if the sum was rounded down, and
            # `rest` + 1 if it was rounded up. The sum ends up above if this fraction is more than
            # the random number.
            words += np.less(uniform, rest, out=moved)
            uniform -= np.float32(1 << FRACTION_BITS)
            words -= np.greater_equal(uniform, rest, out=moved)


NEAREST = Nearest()
TRUNCATE = Truncate()


def rounding_of(scheme: Scheme) -> SchemeRounding:
    """The rounding of a scheme."""
    match scheme.rounding:
        case "truncate":
            return TRUNCATE
        case "stochastic":
            return Stochastic(scheme.seed)
        case _:
            return NEAREST


def _pieces(*arrays: Float32 | Words) -> Iterator[tuple[int, tuple[Float32, ...]]]:
    """Pieces of all arrays, each with its start, that are short enough to stay in the cache while
    several small steps work on them."""
    for start in range(0, arrays[0].size, CACHED):
        yield start, tuple(a[start : start + CACHED] for a in arrays)  # type: ignore[misc]
