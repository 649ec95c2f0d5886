"""The roundings of a scheme: to nearest even, or stochastically, which rounds up with a probability
equal to the fraction of the step.

Each works in three arithmetics, because formats are rounded in three ways: to whole numbers
(integers), by cutting bits off float32 words (BF16, TF32), and by adding a number that leaves the
significand in the low bits of the sum (narrower floats, see `NarrowFloat`). `noise` are the random
words of the elements, uint32 in their shape; None rounds to nearest.

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

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from qtui_core.quant.layout import CACHED, Float32

Words: TypeAlias = npt.NDArray[np.uint32]

#: Bits of the uniform numbers that fractions are compared with: the significand of a float32 holds
#: them exactly.
FRACTION_BITS = 24
#: Mean squared error of values that are spread evenly over a step, in units of the squared step.
ROUNDING_NOISE = {"nearest": 1 / 12, "stochastic": 1 / 6}

_WORD = 1 << 32
_MASK64 = (1 << 64) - 1
_FACTORS = np.uint32(0xED5AD4BB), np.uint32(0xAC4C1B51), np.uint32(0x31848BAB)


def random_words(seed: int, start: int, count: int) -> Words:
    """Uniform random words, uint32 `[count]`, of the elements from `start` of the flattened tensor
    on."""
    words = np.arange(start, start + count, dtype=np.uint64).astype(np.uint32)
    turn = start // _WORD
    wrapped = min(count, (turn + 1) * _WORD - start)  # where the 32-bit counter begins anew
    for turns, part in ((turn, words[:wrapped]), (turn + 1, words[wrapped:])):
        first, second = _keys(seed, turns)
        for at in range(0, part.size, CACHED):
            piece = part[at : at + CACHED]
            piece ^= np.uint32(first)
            piece ^= piece >> 17
            piece *= _FACTORS[0]
            piece ^= piece >> 11
            piece += np.uint32(second)
            piece *= _FACTORS[1]
            piece ^= piece >> 15
            piece *= _FACTORS[2]
            piece ^= piece >> 14
    return words


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


def fractions(noise: Words) -> Float32:
    """The words as whole numbers, float32, uniform from 0 to 2^24 - 1."""
    return (noise >> np.uint32(32 - FRACTION_BITS)).astype(np.float32)


def to_integers(values: Float32, noise: Words | None) -> Float32:
    """Whole numbers, which do not change. At random up with a probability that is the fraction of
    the step below the value, to within 2^-24, so that the expectation is the value."""
    if noise is None:
        return np.rint(values)
    below = np.floor(values)
    # Just below zero the difference rounds to 1, so it rounds up, as it would with all probability
    # but 2^-25.
    fraction = (values - below) * np.float32(1 << FRACTION_BITS)
    rounded: Float32 = below + (fractions(noise) < fraction)
    return rounded


def add_to_words(words: Words, dropped: int, ties_away: bool, noise: Words | None) -> Words:
    """Words of magnitudes, so increased that cutting off their `dropped` lowest bits rounds
    them."""
    if noise is not None:
        return words + (noise >> np.uint32(32 - dropped))
    if ties_away:
        return words + np.uint32(1 << dropped - 1)
    return words + (
        (words >> np.uint32(dropped) & np.uint32(1)) + np.uint32((1 << dropped - 1) - 1)
    )


def correct_sums(total: Float32, addend: Float32, magnitude: Float32, noise: Words) -> Float32:
    """`total`, which is magnitude + addend rounded to nearest even, moved by one unit in its last
    place where the random words round otherwise. `addend` is a power of two at least twice as large
    as the magnitude, so that a unit in the last place is 2^-23 of it."""
    uniform = fractions(noise)
    # In units of 2^-24 of the last place, which is 2^-23 of the power. This is exact, since the
    # power is a power of two.
    rest = (magnitude - (total - addend)) / addend * np.float32(2.0 ** (FRACTION_BITS + 23))
    # The fraction of the step below the value is `rest` if the sum was rounded down, and `rest` + 1
    # if it was rounded up. The sum ends up above if this fraction is more than the random number.
    words = total.view(np.uint32) + (uniform < rest)
    moved: Float32 = (words - (uniform - np.float32(1 << FRACTION_BITS) >= rest)).view(np.float32)
    return moved
