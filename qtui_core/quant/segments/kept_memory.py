"""The memory of a large result, kept for the next one when nobody has it any more.

Where the kernel gives pages of 4 KiB, the page faults of a new array take two thirds of the time to
dequantize into it: of 4096 x 4096 elements 27 of 40 ms (with pages of 2 MiB 6 of 19 ms).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

#: Bytes of the results whose memory is kept.
LEAST, MOST = 1 << 20, 1 << 28

#: Memory that nobody has, at most one piece.
_kept: list[npt.NDArray[np.uint8]] = []


class _Lent:
    """What an array and its views refer to as long as one of them exists; then its memory is
    kept."""

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__

    def __del__(self, kept: list[npt.NDArray[np.uint8]] = _kept) -> None:
        kept[:] = [self._memory]


def empty_float32(count: int) -> npt.NDArray[np.float32]:
    """Like `numpy.empty(count, numpy.float32)`, if possible in memory that was in use before."""
    nbytes = 4 * count
    if not LEAST <= nbytes <= MOST:
        return np.empty(count, np.float32)
    try:
        memory = _kept.pop()
    except IndexError:
        memory = None
    # Memory twice as large would keep more from others than it saves.
    if memory is None or not nbytes <= memory.size <= 2 * nbytes:
        memory = np.empty(nbytes, np.uint8)
    return np.asarray(_Lent(memory))[:nbytes].view(np.float32)
