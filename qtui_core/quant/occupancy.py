"""How often each code of a scheme is used, and how the values of a group are distributed between
its outermost levels.

A 4-bit code that is never used wastes a sixteenth of the levels. If the entropy of the codes is
well below their bits, the difference is what compression, or better placed levels, would save.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.job import Job
from qtui_core.quant.codebook import unpack_nibbles
from qtui_core.quant.elements import Elements, Segment
from qtui_core.quant.gaussian import Groups, groups_of
from qtui_core.quant.layout import Float32, Float64, Int64, group_views
from qtui_core.quant.levels import Alphabet, alphabet_of
from qtui_core.quant.measure import sum_of_squares
from qtui_core.quant.plan import Plan, Prepared, SchemeReducer, encode, prepare, scan
from qtui_core.schemes.granularity import PerModel
from qtui_core.schemes.scheme import Family, Scheme

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


class OccupancyScan(SchemeReducer[list[Any]]):
    """Counts the codes of a scheme of up to 8 bits without storing them. Raises UsageError for a
    format of more bits."""

    def __init__(self, scheme: Scheme, bins: int = DENSITY_BINS) -> None:
        super().__init__(scheme)
        self.bins, self._alphabet = bins, alphabet_of(scheme)

    def begin(self, elements: Elements) -> None:
        self._shape = elements.shape
        self.patterns = np.zeros(2**self.scheme.bits, np.int64)
        self.density = np.zeros(self.bins, np.int64)
        self._sums = np.zeros(3)

    def take(self, segment: Segment) -> list[Any]:
        """Elements by bit pattern and by place; how many are beyond the levels and not finite, and
        the sum of squares, where the scale depends on the size of the elements."""
        plan, bins = self.plan, self.bins
        prepared = prepare(plan, segment)
        codes, place = _patterns(plan, prepared), _places(plan, self._alphabet, prepared)
        x = prepared.x
        counted = np.ones(segment.size, bool)
        if plan.decomposition is not None:
            plan.decomposition.fill(counted, segment.start, False)
        if prepared.nonfinite is not None:
            counted &= ~prepared.nonfinite
            x = np.where(prepared.nonfinite, np.float32(0), x)
        if plan.decomposition is not None or prepared.nonfinite is not None:
            codes, place = codes[counted], place[counted]
        # The place of the extreme itself may be off by a rounding or two.
        beyond = int(np.count_nonzero(np.abs(place) > 1 + 1e-5)) if plan.scheme.symmetric else 0
        place = np.clip((place + np.float32(1)) * np.float32(bins / 2), 0, bins - 1)
        return [
            np.bincount(codes, minlength=len(self._alphabet.codes)),
            np.bincount(place.astype(np.int32), minlength=bins),
            (
                beyond,
                0 if prepared.nonfinite is None else int(prepared.nonfinite.sum()),
                sum_of_squares(x, prepared.absmax)
                if plan.scheme.family is Family.MICROSCALING
                else 0.0,
            ),
        ]

    def add(self, part: list[Any]) -> None:
        self.patterns += part[0]
        self.density += part[1]
        self._sums += part[2]

    def result(self) -> Occupancy:
        scheme, shape, alphabet = self.scheme, self._shape, self._alphabet
        beyond, nonfinite, squared = self._sums
        sigma = math.sqrt(squared / max(1, int(self.patterns.sum()))) or 1.0
        expected = expected_density = None
        if not (isinstance(scheme.granularity, PerModel) and self.model_absmax is not None):
            expected, expected_density = expected_shares(scheme, shape, self.bins, sigma=sigma)
        return Occupancy(
            scheme=scheme,
            shape=shape,
            codes=alphabet.codes,
            levels=alphabet.levels,
            reachable=alphabet.reachable,
            counts=self.patterns[alphabet.codes],
            expected=expected,
            density=self.density,
            expected_density=expected_density,
            beyond=int(beyond),
            nonfinite=int(nonfinite),
        )


def expected_shares(
    scheme: Scheme, shape: tuple[int, ...], bins: int = DENSITY_BINS, *, sigma: float = 1.0
) -> tuple[Float64, Float64] | tuple[None, None]:
    """(`expected`, `expected_density`) of `Occupancy` for a tensor of independent N(0, sigma²)
    elements; None where `groups_of` has none."""
    groups = groups_of(scheme, shape, sigma)
    if not groups:
        return None, None
    shares = [_shares(group, bins) for _, group in groups]
    codes, density = (
        np.sum([share * part for (share, _), part in zip(groups, parts, strict=True)], axis=0)
        for parts in zip(*shares, strict=True)
    )
    return codes, density


@lru_cache(maxsize=256)
def _shares(groups: Groups, bins: int) -> tuple[Float64, Float64]:
    reducer = OccupancyScan(groups.scheme, bins)
    scan(groups.values, [reducer], job=Job(threads=1))
    density = reducer.density
    codes = reducer.patterns[alphabet_of(groups.scheme).codes]
    return codes / codes.sum(), density / density.sum()


def _patterns(plan: Plan, prepared: Prepared) -> npt.NDArray[np.uint8]:
    """The bit pattern of each element."""
    size = prepared.x.size
    codes = np.empty(plan.code_count(size), plan.coder.code_dtype)
    encode(plan, prepared, codes)
    if plan.packed:
        return unpack_nibbles(codes, size)
    return codes.view(np.uint8) & np.uint8(2**plan.scheme.bits - 1)


def _places(plan: Plan, alphabet: Alphabet, prepared: Prepared) -> Float32:
    """The place of each element between the outermost levels of its group, from -1 to 1."""
    place = np.empty(prepared.x.size, np.float32)
    scales, top = prepared.scales, np.float32(alphabet.top)
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
    for (x, out), (by, added) in group_views(plan.layout, (prepared.x, place), (reach, shift)):
        out[...] = x / by if added is None else x / by + added
    return place
