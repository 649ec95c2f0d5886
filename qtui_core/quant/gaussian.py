"""What a scheme does to normally distributed data, the reference for measured errors and codes.

The scheme itself quantizes a fixed sample, so that every scheme has its reference without a line
here. The sample is stratified: its elements are the middles of equally likely intervals, shuffled,
each with its negative. What a long group loses depends on its smallest and its largest element.
These lie at evenly spread quantiles of their own distributions, so few groups are enough, and a
group too long for the sample is a shorter one with the extremes of the long one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, lru_cache

import numpy as np

from qtui_core.dataclass import dataclass
from qtui_core.job import Job
from qtui_core.quant.coders import LARGEST, make_coder
from qtui_core.quant.elements import ModelExtent
from qtui_core.quant.layout import Extent, Float32, Float64, matrix_shape, run_lengths
from qtui_core.quant.quantized import quantize
from qtui_core.schemes.granularity import PerBlock, PerGroup, PerModel, PerRow
from qtui_core.schemes.scheme import Family, Scheme

#: Elements of a sample, and at most of a group in it.
SAMPLE, LONGEST = 1 << 18, 1 << 12
#: An expected number of outlier columns up to this counts as none.
NO_COLUMNS = 0.01


@dataclass(frozen=True)
class Groups:
    """Groups of one length in a tensor of normal elements.

    Attributes:
        scheme: the scheme, with a scale for each row of `values`.
        length: elements of a group; 0 if no scale depends on them.
        count: elements of the tensor.
        sigma: their standard deviation, 1.0 where it does not matter.
        extent: the given smallest and largest element of the model, in the unit of `sigma`.
    """

    scheme: Scheme
    length: int
    count: int
    sigma: float
    extent: tuple[float, float] | None = None

    @property
    def values(self) -> Float32:
        """The sample, float32 `[groups, elements]`."""
        rows = normal_rows(self.length)
        if self.scheme.family is Family.TWO_LEVEL:
            # Scales of groups are stored relative to the largest element of the tensor.
            largest = np.float32(usual_absmax(self.count))
            rows = np.clip(rows, -largest, largest)
            rows[0, 0] = largest
        with np.errstate(over="ignore", under="ignore"):
            return np.clip(rows * np.float32(self.sigma), -LARGEST, LARGEST)


def groups_of(
    scheme: Scheme,
    shape: tuple[int, ...],
    sigma: float = 1.0,
    model_absmax: ModelExtent | None = None,
) -> tuple[tuple[float, Groups], ...]:
    """The groups of a tensor of independent N(0, sigma²) elements by their length, with the share
    of its elements that each has. Empty for an empty tensor, and if elements are expected beyond
    the outlier threshold of the scheme."""
    count = math.prod(shape)
    if count == 0:
        return ()
    if scheme.outlier_threshold is not None:
        rows, columns = matrix_shape(shape)
        beyond = min(math.erfc(scheme.outlier_threshold / sigma / math.sqrt(2)), 1 - 1e-16)
        if -math.expm1(rows * math.log1p(-beyond)) * columns > NO_COLUMNS:
            return ()
        scheme = replace(scheme, outlier_threshold=None)
    if scheme.family is Family.CAST:
        return ((1.0, Groups(scheme, 0, count, sigma)),)
    if isinstance(scheme.granularity, PerModel) and model_absmax is not None:
        low, high = (
            model_absmax if isinstance(model_absmax, tuple) else (-model_absmax, model_absmax)
        )
        return ((1.0, Groups(scheme, 0, count, 1.0, (low / sigma, high / sigma))),)
    # Scales that are powers of two repeat with every octave of sigma.
    sigma = math.frexp(sigma)[0] if scheme.family is Family.MICROSCALING else 1.0
    lengths = run_lengths(scheme.granularity, shape)
    groups, own = sum(lengths.values()), scheme.family is Family.TWO_LEVEL
    return tuple(
        (
            length * times / count,
            Groups(by_row(scheme, length, groups), length, count if own else 0, sigma),
        )
        for length, times in lengths.items()
    )


def by_row(scheme: Scheme, length: int, groups: int) -> Scheme:
    """The scheme with a group for each row of `normal_rows(length)`; `groups` is how many there
    are in the tensor, of which some share a constant under double quantization."""
    if isinstance(scheme.granularity, PerGroup):
        return scheme
    if not isinstance(scheme.granularity, PerBlock):
        return replace(scheme, granularity=PerRow())
    if scheme.double_quantization:
        scheme = replace(scheme, nested_block=min(scheme.nested_block, groups))
    return replace(scheme, granularity=PerBlock(min(length, LONGEST)))


def gaussian_relative_mse(
    scheme: Scheme,
    shape: tuple[int, ...],
    *,
    sigma: float = 1.0,
    model_absmax: ModelExtent | None = None,
) -> float | None:
    """Expected squared error over expected squared value (no unit) of a tensor of `shape` whose
    elements are independent N(0, sigma²), to about 0.02 dB.

    Args:
        scheme: the scheme.
        shape: of the tensor, any number of dimensions.
        sigma: in the unit of the tensor. It matters for casts, for scales that are powers of two,
            and with `model_absmax`; the levels of other schemes scale with the tensor.
        model_absmax: the extent of the model for granularity `model`, as for `quantize`.

    Returns None for an empty tensor, and if elements are expected beyond the outlier threshold of
    the scheme.
    """
    groups = groups_of(scheme, shape, sigma, model_absmax)
    if not groups:
        return None
    return sum(share * _relative_mse(group) for share, group in groups)


@lru_cache(maxsize=4096)
def _relative_mse(groups: Groups) -> float:
    # The extremes of a group that is longer than in the sample have no share in its sums.
    beside = 2 if groups.length > LONGEST else 0
    return _error(groups.values, groups.scheme, groups.extent, beside)


def outlier_relative_mse(
    scheme: Scheme, extent: float, sigma: float, length: int | None = None
) -> float:
    """Expected squared error over squared value of N(0, sigma²) elements in a group whose scale is
    set by an outlier of magnitude `extent` (in the unit of `sigma`). `length` is the number of
    elements in the group. It matters only if the scale is a mean magnitude; without it, `extent` is
    that mean."""
    size = scheme.granularity.size if isinstance(scheme.granularity, PerGroup) else LONGEST
    size = min(size, LONGEST)
    values = normal_rows(0)[:, : SAMPLE // size * size].reshape(-1, size) * np.float32(sigma)
    if make_coder(scheme).extent is Extent.ABS_MEAN:
        rest = math.sqrt(2 / math.pi) * sigma
        mean = extent if length is None else rest + (extent - rest) / length
        extent = max(mean * values.shape[1] - rest * (values.shape[1] - 1), 0.0)
    values[:, 0] = min(extent, LARGEST)
    return _error(values, by_row(scheme, LONGEST, len(values)), beside=1)


def _error(
    values: Float32, scheme: Scheme, extent: ModelExtent | None = None, beside: int = 0
) -> float:
    """Squared error over squared value, of those elements `[rows, beside:]` that stay finite."""
    read = quantize(values, scheme, model_absmax=extent, job=Job(threads=1)).dequantize(threads=1)
    x, read = values[:, beside:], read[:, beside:]
    kept = np.isfinite(read)
    with np.errstate(invalid="ignore", under="ignore"):
        squared, error = (
            float(np.square(part[kept], dtype=np.float64).sum()) for part in (x, x - read)
        )
    return error / squared if squared else 0.0


@lru_cache(maxsize=16)
def normal_rows(length: int) -> Float32:
    """Standard normal elements in groups of `length`, or of `LONGEST` with the extremes of a longer
    group; all in one row if the length is 0. float32 `[groups, elements]`."""
    size = min(length, LONGEST) or SAMPLE // 2
    half = max(1, SAMPLE // 2 // size)
    random = np.random.default_rng(0)
    share = (random.permutation(half * size).reshape(half, size) + 0.5) / (half * size)
    if length < 2:
        x = _at(share)
    else:
        # P(the largest of n < m) = P(one < m)^n, and the smallest is that of n - 1 below it. The
        # golden ratio spreads the pairs of their quantiles evenly.
        place = np.arange(half)[:, None] + 0.5
        above = -np.expm1(np.log(place / half) / length)
        below = (above - 1) * np.expm1(np.log(place * (math.sqrt(5) - 1) / 2 % 1) / (length - 1))
        x = _at(above + share * (1 - above - below))
        x[:, 0], x[:, 1] = _at(above)[:, 0], -_at(below)[:, 0]
        x = x[random.permutation(half)]
    rows = np.concatenate([x, -x]).astype(np.float32)
    rows.flags.writeable = False
    return rows.reshape(1, -1) if length == 0 else rows


def usual_absmax(count: int) -> float:
    """The median of the largest magnitude of `count` independent normal elements."""
    return float(_at(np.array(-math.expm1(-math.log(2) / count) / 2)))


def _at(tail: Float64) -> Float64:
    """x with P(X > x) = tail."""
    minus_logarithm, x = _table()
    return np.interp(-np.log(tail), minus_logarithm, x)


@cache
def _table() -> tuple[Float64, Float64]:
    x = np.arange(-8, 12, 1 / 256)
    return np.array([-math.log(math.erfc(v / math.sqrt(2)) / 2) for v in x.tolist()]), x
