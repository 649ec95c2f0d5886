"""Rows of a weight in the order and form that another model has them in."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from qtui_core.packed.parts import Float32


class Rows(Protocol):
    """Rows on request: float32 `[stop - start, shape[1]]`."""

    @property
    def shape(self) -> tuple[int, int]: ...

    def rows(self, start: int, stop: int) -> Float32: ...


class HalvesOfHeads:
    """Rows of each head as Hugging Face has them, from the order that llama.cpp stores.

    A head of d rows rotates row j with row j + d/2 there; llama.cpp's converter writes such
    pairs next to each other (`LlamaModel.permute`: `[heads, 2, d/2]` -> `[heads, d/2, 2]`).
    Row j of the first half is stored at 2j, row j of the second at 2j + 1.
    """

    def __init__(self, stored: Rows, heads: int) -> None:
        self.shape = stored.shape
        self._stored = stored
        self._size = stored.shape[0] // heads

    def rows(self, start: int, stop: int) -> Float32:
        wanted = np.arange(start, stop)
        head, row = np.divmod(wanted, self._size)
        half, pair = np.divmod(row, self._size // 2)
        place = head * self._size + 2 * pair + half
        if not place.size:
            return self._stored.rows(start, stop)
        first = int(place.min())
        return self._stored.rows(first, int(place.max()) + 1)[place - first]


class LessOne:
    """Norm weights of models that multiply by one more than they store; llama.cpp stores the
    sum."""

    def __init__(self, stored: Rows) -> None:
        self.shape = stored.shape
        self._stored = stored

    def rows(self, start: int, stop: int) -> Float32:
        return self._stored.rows(start, stop) - np.float32(1)


class OneOfMany:
    """One of several matrices stored as one tensor: expert `index` of `[experts, out, in]`."""

    def __init__(self, stored: Rows, index: int, rows: int) -> None:
        self.shape = (rows, stored.shape[1])
        self._stored = stored
        self._first = index * rows

    def rows(self, start: int, stop: int) -> Float32:
        return self._stored.rows(self._first + start, self._first + stop)


class Transposed:
    """The transpose, decoded as a whole when first asked for and kept."""

    def __init__(self, stored: Rows) -> None:
        self.shape = (stored.shape[1], stored.shape[0])
        self._stored = stored
        self._whole: Float32 | None = None

    def rows(self, start: int, stop: int) -> Float32:
        if self._whole is None:
            self._whole = self._stored.rows(0, self._stored.shape[0]).T
        return np.ascontiguousarray(self._whole[start:stop])


class Reshaped:
    """The same elements in rows of another length, decoded as a whole and kept: for small
    tensors whose shapes differ by dimensions of one element."""

    def __init__(self, stored: Rows, shape: tuple[int, int]) -> None:
        self.shape = shape
        self._stored = stored
        self._whole: Float32 | None = None

    def rows(self, start: int, stop: int) -> Float32:
        if self._whole is None:
            self._whole = self._stored.rows(0, self._stored.shape[0]).reshape(self.shape)
        return self._whole[start:stop]
