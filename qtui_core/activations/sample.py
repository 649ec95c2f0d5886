"""A bounded sample of tokens, evenly spread over all tokens that were seen."""

from __future__ import annotations

import numpy as np

from qtui_core.quant.elements import Float32


class EvenSample:
    """Keeps every row until `capacity` would be exceeded, then every second, then every fourth, and
    so on: the rows whose number is a multiple of `stride`. Nothing is random, and the total number
    of rows need not be known."""

    def __init__(self, features: int, capacity: int) -> None:
        self.capacity = capacity
        self.stride = 1
        self._features = features
        self._seen = 0
        self._parts: list[Float32] = []
        self._kept = 0

    def add(self, x: Float32) -> None:
        """Adds rows, float32 `[rows, features]`, and copies those that it keeps."""
        first = -self._seen % self.stride
        self._seen += x.shape[0]
        if not self.capacity:
            return
        while self._kept + len(range(first, x.shape[0], self.stride)) > self.capacity:
            self._thin()
            first = -(self._seen - x.shape[0]) % self.stride
        part = x[first :: self.stride].copy()
        if part.shape[0]:
            self._parts.append(part)
            self._kept += part.shape[0]

    def _thin(self) -> None:
        kept = self.rows()[::2].copy()
        self._parts, self._kept = [kept], kept.shape[0]
        self.stride *= 2

    def rows(self) -> Float32:
        """The kept rows in order, float32 `[kept, features]`."""
        if not self._parts:
            return np.empty((0, self._features), np.float32)
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0]
