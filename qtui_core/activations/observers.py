"""What is kept of the values that flow through a module: a few numbers per channel and a histogram
of all of them, of which a range rule makes the range of a fixed scale."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.quant.elements import Float32

Side = Literal["input", "output"]

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

#: A bin of the histogram holds all float32 numbers with the same sign, exponent and upper 10 of 23
#: mantissa bits. Its width is 2^-10 of its value, and each bfloat16 or TF32 number has a bin of its
#: own.
_DROPPED_BITS = 13
BINS = 1 << (32 - _DROPPED_BITS)
_HALF = BINS // 2
#: Elements per chunk of the count.
_PIECE = 1 << 20


class Observed:
    """What was observed of activations `[tokens, features]`, one batch at a time. Numbers are over
    the finite elements; None if there are none.

    Attributes:
        tokens, features: how many.
        nonfinite: NaN and infinities.
        min, max: of all elements.
        channel_absmax: float32 `[features]`, the largest magnitude in each channel.
        counts: int64 `[BINS]`, elements by the upper 19 bits of the float32 word, in ascending
            order of values.
    """

    def __init__(self, features: int) -> None:
        self.tokens, self.features, self.nonfinite = 0, features, 0
        self.min: float | None = None
        self.max: float | None = None
        self.channel_absmax = np.zeros(features, np.float32)
        self.counts = np.zeros(BINS, np.int64)
        self._squares = np.zeros(features, np.float64)

    @property
    def second_moment(self) -> Float64:
        """float64 `[features]`, the mean square of each channel over the tokens, E[x_j^2]; a NaN
        or infinity counts as 0."""
        return self._squares / max(1, self.tokens)

    def add(self, x: Float32) -> None:
        """Adds tokens, float32 `[tokens, features]`."""
        finite = np.isfinite(x)
        missing = x.size - int(np.count_nonzero(finite))
        values = x[finite] if missing else x.reshape(-1)
        self.tokens += x.shape[0]
        self.nonfinite += missing
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        self.min = low if self.min is None else min(self.min, low)
        self.max = high if self.max is None else max(self.max, high)
        self._count(values)
        x = np.where(finite, x, np.float32(0)) if missing else x
        np.maximum(self.channel_absmax, np.abs(x).max(axis=0), out=self.channel_absmax)
        self._squares += np.einsum("ij,ij->j", x, x, dtype=np.float64)

    def _count(self, values: Float32) -> None:
        for start in range(0, values.size, _PIECE):
            words = np.ascontiguousarray(values[start : start + _PIECE]).view(np.uint32)
            bins = (words >> _DROPPED_BITS).astype(np.int64)
            # Reorders sign and magnitude by value: -inf comes first, -0 just below 0.
            bins = np.where(bins < _HALF, bins + _HALF, BINS - 1 - bins)
            self.counts += np.bincount(bins, minlength=BINS)


@dataclass(frozen=True)
class RangeRule:
    """How the range of a fixed scale is chosen from what was observed: from the smallest to the
    largest value (min-max); or, with `percent` (above 50), without 100 - `percent` per cent of the
    elements: if symmetric, those with the largest magnitudes (as the histogram calibrators of
    TensorRT and ModelOpt do), otherwise half of them at each end.

    A percentile is exact for bfloat16 values. For float32 values the bound may be too small by up
    to 2^-10 of itself (see BINS). It is never wider than min-max.
    """

    percent: float | None = None

    @property
    def words(self) -> str:
        return "min-max" if self.percent is None else f"{self.percent:g}%"

    def range_of(self, observed: Observed, *, symmetric: bool) -> tuple[float, float]:
        """The range (low, high); (-a, a) if `symmetric`. Raises UsageError if no finite value was
        observed."""
        if observed.min is None or observed.max is None:
            raise UsageError("No finite value was seen, so there is no range.")
        if self.percent is None:
            low, high = observed.min, observed.max
            return (-max(-low, high), max(-low, high)) if symmetric else (low, high)
        counts = observed.counts
        total = int(counts.sum())
        if symmetric:
            magnitudes = counts[_HALF:] + counts[:_HALF][::-1]
            largest = _value(_HALF + _nearest_rank(magnitudes, self.percent / 100 * total))
            return -largest, largest
        inside = total - (100 - self.percent) / 200 * total
        low = _value(BINS - 1 - _nearest_rank(counts[::-1], inside))
        return low, _value(_nearest_rank(counts, inside))


def _nearest_rank(counts: Int64, rank: float) -> int:
    """The first bin at which at least `rank` elements have been counted."""
    # Rounding errors in the rank must not raise a whole number to the next.
    needed = np.ceil(rank - 1e-9 * max(1.0, rank))
    return int(np.searchsorted(np.cumsum(counts), max(1.0, needed)))


def _value(position: int) -> float:
    """The number with the smallest magnitude in the bin at a position of the ordered histogram."""
    code = position - _HALF if position >= _HALF else BINS - 1 - position
    return float(np.array([code << _DROPPED_BITS], np.uint32).view(np.float32)[0])


class ActivationRecord:
    """The inputs or the outputs of a module over one text: `observed` over all tokens, and rows of
    evenly spaced tokens, of `keep_bytes` at most but for one row.

    Every row is kept until there would be too many, then every second, then every fourth, and so
    on: the rows whose number is a multiple of `stride`. Nothing is random, and the total number of
    rows need not be known.
    """

    def __init__(self, features: int, keep_bytes: int) -> None:
        self.observed = Observed(features)
        self.stride = 1
        self._capacity = max(1, keep_bytes // (4 * features))
        self._parts = [np.empty((0, features), np.float32)]

    def add(self, x: Float32) -> None:
        """Adds tokens, float32 `[tokens, features]`, and copies those that it keeps."""
        while True:
            part = x[-self.observed.tokens % self.stride :: self.stride]
            if sum(map(len, self._parts)) + len(part) <= self._capacity:
                break
            self._parts = [self.rows[::2].copy()]
            self.stride *= 2
        self._parts.append(part.copy())
        self.observed.add(x)

    @property
    def rows(self) -> Float32:
        """The kept rows in order, float32 `[kept, features]`."""
        self._parts = [np.concatenate(self._parts)] if self._parts[1:] else self._parts
        return self._parts[0]

    @property
    def whole(self) -> bool:
        """Whether the rows are those of all tokens."""
        return self.rows.shape[0] == self.observed.tokens


@dataclass(frozen=True, eq=False)
class ModuleRecord:
    """The inputs and outputs of a module. If no token reached the module, it has no features.

    Attributes:
        module: its name in the model that ran.
        kind: its class, "Linear" or "Conv1D"; a Conv1D keeps its weight as [in, out].
    """

    module: str
    kind: str
    input: ActivationRecord
    output: ActivationRecord

    def side(self, name: Side) -> ActivationRecord:
        return self.input if name == "input" else self.output
