"""How a number between two levels takes one of them: to the nearest, toward zero, or at random
in proportion.

Each rounding knows three arithmetics, those of the formats: whole steps (integers), float32
words with bits cut off their end (BF16, TF32), and sums that hold the significand in their low
bits (narrower floats, see `NarrowRounder`). All work in place on flat arrays of a segment.

Random bits go by position: the same element of a tensor gets the same bits whatever is computed
before it, so that results do not depend on threads, on segments or on how a file is read.
Element i under a seed gets a hash of i with two keys. The hash is `triple32` of Chris Wellons
(hash-prospector, 2018, public domain): three multiplications and four shifts of a 32-bit word,
found by search for the least avalanche bias. (Its shorter sibling `lowbias32` is not enough: words
4096 elements apart, as often as not neighbours in a column, depend on each other.) It is a
bijection, so over 2^32 elements every word comes once. The keys, one before and one in the middle,
come from SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) of the seed, so that streams of two seeds
are not shifts of each other.
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

#: Bits of the uniform numbers that fractions are compared with: those of a float32.
FRACTION_BITS = 24
_WORD = 1 << 32
_MASK64 = (1 << 64) - 1
_FACTORS = np.uint32(0xED5AD4BB), np.uint32(0xAC4C1B51), np.uint32(0x31848BAB)
_COUNT: Words = np.arange(CACHED, dtype=np.uint32)
_COUNT.flags.writeable = False


def random_words(seed: int, start: int, count: int, scratch: Scratch) -> Words:
    """Uniform random words uint32 `[count]`, those of the elements from `start` of the flattened
    tensor on; in scratch memory. `count` is at most CACHED."""
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
    """The words as whole numbers float32 `[count]`, uniform from 0 to 2^24 - 1."""
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
    """Two words for a seed and the number of times the counter of elements has wrapped."""
    mixed = _split_mix(_split_mix(seed) + turn)
    return mixed & (_WORD - 1), mixed >> 32


def _split_mix(state: int) -> int:
    state = (state + 0x9E3779B97F4A7C15) & _MASK64
    state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK64
    state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK64
    return state ^ state >> 31


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
