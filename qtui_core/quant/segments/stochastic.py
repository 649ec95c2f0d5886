"""Random bits by position: the same element of a tensor gets the same bits whatever is computed
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

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from qtui_core.quant.segments.elements import Float32
from qtui_core.quant.segments.parallel import CACHED, Scratch

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
