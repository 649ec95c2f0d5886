"""Integers of a few bits, packed end to end into 32-bit words, the lowest bits first."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qtui_core.packed.stored_tensors import Array

UInt8 = NDArray[np.uint8]


def unpack_down(words: Array, bits: int, count: int) -> UInt8:
    """The first `count` codes of each column: 32-bit words `[w, n]` to uint8 `[count, n]`.

    Code k is bits [k·bits, (k + 1)·bits) of its column's words; with 3 bits some codes are spread
    over two words. `bits` is 1 to 8.
    """
    words = np.ascontiguousarray(words).view(np.uint32)
    if 32 % bits == 0:
        shifts = np.arange(0, 32, bits, dtype=np.uint32)
        codes = words[:, None, :] >> shifts[None, :, None]
        codes &= np.uint32((1 << bits) - 1)
        return codes.astype(np.uint8).reshape(-1, words.shape[1])[:count]
    position = np.arange(count, dtype=np.int64) * bits
    low = position // 32
    high = np.minimum(low + 1, len(words) - 1)
    pairs: NDArray[Any] = words[high].astype(np.uint64)
    pairs <<= np.uint64(32)
    pairs |= words[low]
    pairs >>= (position % 32).astype(np.uint64)[:, None]
    pairs &= np.uint64((1 << bits) - 1)
    return pairs.astype(np.uint8)


def unpack_across(words: Array, bits: int, count: int) -> UInt8:
    """The first `count` codes of each row: 32-bit words `[n, w]` to uint8 `[n, count]`."""
    return unpack_down(words.T, bits, count).T


def words_of(count: int, bits: int) -> int:
    """The number of 32-bit words that `count` codes take."""
    return -(-count * bits // 32)
