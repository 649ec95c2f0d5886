"""How often each code of a scheme is used, and how the values of a group are distributed between
its outermost levels.

A 4-bit code that is never used wastes a sixteenth of the levels. If the entropy of the codes is
well below their bits, the difference is what compression, or better placed levels, would save.
"""

from __future__ import annotations

import math
from dataclasses import fields
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.quant.coding.levels import Alphabet, Float64, alphabet_of
from qtui_core.quant.gaussian import Groups, groups_of
from qtui_core.quant.measure import sum_of_squares
from qtui_core.quant.scan.scan import SchemeReducer, scan
from qtui_core.quant.segments.elements import Elements, Float32, Segment
from qtui_core.quant.segments.grouping import group_views
from qtui_core.quant.segments.layout import Layout
from qtui_core.quant.segments.parallel import Scratch
from qtui_core.quant.segments.process import Plan, Prepared, encode, prepare
from qtui_core.schemes.granularity import PerModel
from qtui_core.schemes.scheme import Family, Scheme

Int64 = npt.NDArray[np.int64]

DENSITY_BINS = 192


@dataclass(frozen=True, eq=False)
class Occupancy:
    """How a scheme uses its codes on a tensor, over the finite elements.

    Arrays are in ascending order of the levels, -0 before +0. K is 2^bits.

    Attributes:
        codes: int64 `[K]`, the bit patterns.
        levels: float64 `[K]`, as in `Alphabet`: relative to the absmax of a group.
        reachable: bool `[K]`, False for patterns that no element can have.
        counts: int64 `[K]`, the number of elements with each code.
        expected: float64 `[K]`, the share of each code in a Gaussian tensor of this shape; None if
            it is not known.
        density: int64 `[bins]`, the number of elements by their place in their group, from -1 to 1.
            Good levels follow this distribution. Elements beyond -1 or 1 count in the end bins.
        expected_density: float64 `[bins]`, the shares in a Gaussian tensor, or None.
        beyond: the number of elements outside the outermost levels, which their scale is too small
            for.
        nonfinite: the number of NaN and infinities, which are counted nowhere else.
    """

    scheme: Scheme
    shape: tuple[int, ...]
    codes: Int64
    levels: Float64
    reachable: npt.NDArray[np.bool_]
    counts: Int64
    expected: Float64 | None
    density: Int64
    expected_density: Float64 | None
    beyond: int
    nonfinite: int

    @property
    def total(self) -> int:
        """The number of elements that were counted."""
        return int(self.counts.sum())

    @property
    def entropy_bits(self) -> float | None:
        """-sum p log2 p over the codes: the bits per code under the best compression that ignores
        neighbouring codes. None if there are no elements."""
        return entropy(self.counts / self.total) if self.total else None

    @property
    def expected_entropy_bits(self) -> float | None:
        """The entropy in bits of the codes of a Gaussian tensor, or None."""
        return None if self.expected is None else entropy(self.expected)

    @property
    def unused(self) -> Int64:
        """The codes that this tensor could use but does not."""
        return self.codes[self.reachable & (self.counts == 0)]

    @property
    def unreachable(self) -> Int64:
        """The codes that no tensor uses in this format."""
        return self.codes[~self.reachable]


def entropy(shares: Float64) -> float:
    """-sum p log2 p, in bits; a share of 0 adds nothing."""
    p = shares[shares > 0]
    return float(-(p * np.log2(p)).sum()) + 0.0


@dataclass(frozen=True, eq=False)
class _Counts:
    """Counts over one segment: `patterns` by bit pattern, and `squared`, the sum of squares, where
    the scale depends on the size of the elements."""

    patterns: Int64
    density: Int64
    beyond: int = 0
    nonfinite: int = 0
    squared: float = 0.0

    def __add__(self, later: _Counts) -> _Counts:
        return _Counts(*(getattr(self, f.name) + getattr(later, f.name) for f in fields(self)))


class OccupancyScan(SchemeReducer[_Counts]):
    """Counts the codes of a scheme of up to 8 bits without storing them. Raises UsageError for a
    format of more bits."""

    def __init__(self, scheme: Scheme, bins: int = DENSITY_BINS) -> None:
        super().__init__(scheme)
        self.bins, self._alphabet = bins, alphabet_of(scheme)

    def begin(self, elements: Elements) -> None:
        self._shape = elements.shape
        self.total = _Counts(np.zeros(2**self.scheme.bits, np.int64), np.zeros(self.bins, np.int64))

    def take(self, segment: Segment, scratch: Scratch) -> _Counts:
        plan, bins = self.plan, self.bins
        prepared = prepare(plan, segment, scratch)
        codes = _patterns(plan, prepared, scratch)
        place = _places(plan, self._alphabet, prepared, scratch)
        nonfinite = 0
        counted = _kept_apart(plan, segment)
        if prepared.nonfinite is not None:
            nonfinite = int(np.count_nonzero(prepared.nonfinite))
            counted = ~prepared.nonfinite if counted is None else counted & ~prepared.nonfinite
        if counted is not None:
            codes, place = codes[counted], place[counted]
        squared = 0.0
        if plan.scheme.family is Family.MICROSCALING:
            x = prepared.x
            if prepared.nonfinite is not None:
                x = np.where(prepared.nonfinite, np.float32(0), x)
            squared = sum_of_squares(x, prepared.absmax, scratch)
        beyond = 0
        if plan.scheme.symmetric:
            # The place of the extreme itself may be off by a rounding or two.
            beyond = int(np.count_nonzero(np.abs(place) > 1 + 1e-5))
        place += np.float32(1)
        place *= np.float32(bins / 2)
        np.clip(place, 0, bins - 1, out=place)
        return _Counts(
            np.bincount(codes, minlength=len(self._alphabet.codes)),
            np.bincount(place.astype(np.int32), minlength=bins),
            beyond,
            nonfinite,
            squared,
        )

    def add(self, part: _Counts) -> None:
        self.total += part

    def result(self) -> Occupancy:
        scheme, shape, alphabet, total = self.scheme, self._shape, self._alphabet, self.total
        sigma = math.sqrt(total.squared / max(1, int(total.patterns.sum()))) or 1.0
        expected = expected_density = None
        if not (isinstance(scheme.granularity, PerModel) and self.model_absmax is not None):
            expected, expected_density = expected_shares(scheme, shape, self.bins, sigma=sigma)
        return Occupancy(
            scheme=scheme,
            shape=shape,
            codes=alphabet.codes,
            levels=alphabet.levels,
            reachable=alphabet.reachable,
            counts=total.patterns[alphabet.codes],
            expected=expected,
            density=total.density,
            expected_density=expected_density,
            beyond=total.beyond,
            nonfinite=total.nonfinite,
        )


def expected_shares(
    scheme: Scheme, shape: tuple[int, ...], bins: int = DENSITY_BINS, *, sigma: float = 1.0
) -> tuple[Float64, Float64] | tuple[None, None]:
    """(`expected`, `expected_density`) of `Occupancy` for a tensor of independent N(0, sigma²)
    elements; None where `groups_of` has none."""
    groups = groups_of(scheme, shape, sigma)
    if not groups:
        return None, None
    found = [_shares(each, bins) for _, each in groups]
    codes, density = (
        np.sum([share * part for (share, _), part in zip(groups, parts, strict=True)], axis=0)
        for parts in zip(*found, strict=True)
    )
    return codes, density


@lru_cache(maxsize=256)
def _shares(groups: Groups, bins: int) -> tuple[Float64, Float64]:
    reducer = OccupancyScan(groups.scheme, bins)
    scan(groups.values, [reducer], threads=1)
    patterns, density = reducer.total.patterns, reducer.total.density
    codes = patterns[alphabet_of(groups.scheme).codes]
    return codes / codes.sum(), density / density.sum()


def _kept_apart(plan: Plan, segment: Segment) -> npt.NDArray[np.bool_] | None:
    """A mask of the elements that are in no column kept in 16 bits; None if no column is kept."""
    if plan.decomposition is None:
        return None
    quantized = np.ones(segment.size, np.float32)
    plan.decomposition.fill(quantized, segment.start, 0.0)
    return quantized != 0


def _patterns(plan: Plan, prepared: Prepared, scratch: Scratch) -> npt.NDArray[np.uint8]:
    """The bit pattern of each element."""
    size = prepared.x.size
    coder = plan.coder
    codes = scratch.take("codes", coder.code_count(size), coder.code_dtype)
    encode(plan, prepared, codes, scratch)
    if plan.scheme.family is Family.CODEBOOK:
        patterns = scratch.take("patterns", 2 * codes.size, np.uint8)
        np.right_shift(codes, 4, out=patterns[::2])
        np.bitwise_and(codes, 15, out=patterns[1::2])
        return patterns[:size]
    patterns = codes.view(np.uint8)
    if plan.scheme.bits < 8:
        patterns &= np.uint8(2**plan.scheme.bits - 1)
    return patterns


def _places(plan: Plan, alphabet: Alphabet, prepared: Prepared, scratch: Scratch) -> Float32:
    """The place of each element between the outermost levels of its group, from -1 to 1."""
    place: Float32 = scratch.take("place", prepared.x.size, np.float32)
    scales = prepared.scales
    layout: Layout = plan.layout
    top = np.float32(alphabet.top)
    # Divided, not multiplied by the reciprocal: that of the smallest scale is infinite, and zero
    # times it would be NaN.
    reach = np.where(scales.scale == 0, np.float32(np.inf), scales.scale * top)
    shift: npt.NDArray[np.floating] | None = None
    if plan.scheme.float_zero_point:
        # The zero point is a number in the unit of the tensor, at the code 2^(bits - 1).
        assert scales.zero_point is not None
        shift = np.float32(0.5) / top - scales.zero_point / reach
    elif scales.zero_point is not None:
        shift = scales.zero_point.astype(np.float32) / top - np.float32(1)
    for (x, out), (by, added) in group_views(layout, (prepared.x, place), (reach, shift)):
        np.divide(x, by, out=out)
        if added is not None:
            out += added
    return place
