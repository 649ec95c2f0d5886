"""Views of a weight that give its rows in the order and form of another model's weight."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qtui_core.packed.stored_tensors import Float32
from qtui_core.quant.elements import RowSource


class HalvesOfHeads:
    """The rows of each head in Hugging Face's order, from the order in which llama.cpp stores them.

    In Hugging Face's order, the rotary embedding rotates row j of a head of d rows with row
    j + d/2. llama.cpp's converter writes these pairs next to each other (`LlamaModel.permute`:
    `[heads, 2, d/2]` to `[heads, d/2, 2]`): row j of the first half is stored at 2j, row j of the
    second half at 2j + 1.
    """

    def __init__(self, stored: RowSource, heads: int) -> None:
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


class ShiftedRows:
    """Rows of a weight from row `first` on, with a number added: the matrix of one expert in a
    stored tensor `[experts, out, in]`; or norm weights less one, as Gemma and Nemotron store w and
    multiply by w + 1, and llama.cpp stores w + 1."""

    def __init__(
        self, stored: RowSource, first: int = 0, rows: int | None = None, added: float = 0.0
    ) -> None:
        self.shape = (stored.shape[0] if rows is None else rows, stored.shape[1])
        self._stored, self._first, self._added = stored, first, np.float32(added)

    def rows(self, start: int, stop: int) -> Float32:
        rows = self._stored.rows(self._first + start, self._first + stop)
        return rows + self._added if self._added else rows


class KeptWhole:
    """Other rows of a weight, which is decoded whole at the first read and kept: those that
    `change` makes of the decoded rows."""

    def __init__(
        self, stored: RowSource, shape: tuple[int, ...], change: Callable[[Float32], Float32]
    ) -> None:
        self.shape = shape
        self._stored = stored
        self._change = change
        self._whole: Float32 | None = None

    def rows(self, start: int, stop: int) -> Float32:
        if self._whole is None:
            self._whole = self._change(self._stored.rows(0, self._stored.shape[0]))
        return np.ascontiguousarray(self._whole[start:stop])


def transposed(stored: RowSource) -> KeptWhole:
    """The transpose of a weight."""
    return KeptWhole(stored, stored.shape[::-1], np.transpose)


def reshaped(stored: RowSource, shape: tuple[int, ...]) -> KeptWhole:
    """The same elements in rows of another length: for small tensors whose shapes differ only in
    dimensions of size one."""
    return KeptWhole(stored, shape, lambda values: values.reshape(shape))
