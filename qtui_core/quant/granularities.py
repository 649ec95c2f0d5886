"""One format under other granularities: its error under every possible one, which shows how far the
effect of an outlier reaches; and group sizes that give schemes the same bits per parameter, so that
they can be compared.

A 4-bit code with a 32-bit scale for 64 elements takes 4.5 bits, with a zero point 4.5625, and NF4
with double quantization 4.127. To make them equal, the group size changes; it need not be a power
of two."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from qtui_core.answers import EqualBits
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.quant.layout import layout_of, matrix_shape, scale_shape
from qtui_core.quant.storage import bit_budget
from qtui_core.schemes.granularity import (
    MAX_SIZE,
    Granularity,
    PerBlock,
    PerColumn,
    PerGroup,
    PerModel,
    PerRow,
    PerTensor,
    PerTile,
    PerToken,
    size_of,
)
from qtui_core.schemes.scheme import MAX_DOUBLE_QUANTIZED_BLOCK, Family, Scheme
from qtui_core.schemes.stepping import RESIZABLE, type_of_groups

#: Those that are usual.
GRANULARITIES: tuple[Granularity, ...] = (
    PerTensor(),
    PerTile(128, 128),
    PerRow(),
    PerToken(),
    PerColumn(),
    PerGroup(128),
    PerGroup(64),
    PerGroup(32),
    PerBlock(64),
)
#: The same for formats that are defined over blocks of the flattened tensor.
BLOCKS: tuple[Granularity, ...] = tuple(PerBlock(size) for size in (4096, 1024, 256, 128, 64, 32))


@dataclass(frozen=True)
class LeftOut:
    """A granularity that is left out of the comparison, and a sentence that says why."""

    granularity: str
    reason: str


def schemes_by_granularity(
    scheme: Scheme, shape: tuple[int, ...], granularities: Sequence[Granularity] | None = None
) -> tuple[tuple[Scheme, ...], tuple[LeftOut, ...]]:
    """(the scheme with each granularity, the granularities that are left out): those that the
    scheme cannot have, and those that equal another one in a tensor of this shape. Of equal ones
    the scheme's own is kept, else the first. From few scales to many. A cast has no scale and is
    returned alone."""
    if scheme.granularity is None:
        return (scheme,), ()
    if granularities is None:
        usual = BLOCKS if scheme.family is Family.CODEBOOK else GRANULARITIES
        own = () if scheme.granularity in usual else (scheme.granularity,)
        granularities = sorted([*own, *usual], key=lambda g: math.prod(scale_shape(g, shape)))
    distinct: list[Scheme] = []
    left_out: list[LeftOut] = []
    for granularity in granularities:
        try:
            candidate = replace(scheme, granularity=granularity)
        except UsageError as error:
            left_out.append(LeftOut(str(granularity), str(error)))
            continue
        groups = _groups(granularity, shape)
        equal = [other for other in distinct if _groups(other.granularity, shape) == groups]
        if not equal:
            distinct.append(candidate)
            continue
        kept, dropped = equal[0], candidate
        if candidate == scheme != kept:
            distinct[distinct.index(kept)] = candidate
            kept, dropped = candidate, kept
        if kept != dropped:
            reason = f"In this tensor the groups of {dropped.granularity} are those of"
            left_out.append(LeftOut(str(dropped.granularity), f"{reason} {kept.granularity}."))
    return tuple(distinct), tuple(left_out)


def _groups(granularity: Granularity | None, shape: tuple[int, ...]) -> tuple[object, bool]:
    """A value that is equal for granularities whose scales are shared in the same way."""
    return layout_of(granularity, shape), isinstance(granularity, PerModel)


#: Bits per parameter that count as equal: at 6 dB per bit, a difference of 0.1 dB.
TOLERANCE = Fraction(1, 50)


def at_equal_bits(
    schemes: Sequence[Scheme],
    shape: tuple[int, ...],
    bits: Fraction | float,
) -> tuple[EqualBits, ...]:
    """Each scheme at `bits` per parameter in a tensor of `shape`, or as close as it can come.

    Groups and blocks keep their kind and change their size; but if a row is too short to be cut
    into groups that take these bits, groups become blocks of the flattened tensor. Integers and
    small floats with a scale per tensor, row or column get groups. Formats that define their own
    group, and casts, do not change.

    Raises UsageError for an empty tensor.
    """
    if not math.prod(shape):
        raise UsageError("An empty tensor has no bits per parameter to be made equal.")
    return tuple(_nearest(scheme, shape, Fraction(bits)) for scheme in schemes)


def _nearest(scheme: Scheme, shape: tuple[int, ...], wanted: Fraction) -> EqualBits:
    def bits_of(candidate: Scheme) -> Fraction:
        return bit_budget(candidate, shape).bits_per_parameter

    def farness(candidate: Scheme) -> tuple[Fraction, int]:
        # Of equally close sizes take the smaller, which can only be more accurate.
        return abs(bits_of(candidate) - wanted), size_of(candidate.granularity) or 0

    best = scheme
    for kind in _kinds(scheme, wanted):
        if farness(best)[0] > TOLERANCE / 2:  # else an unusual size gains nothing
            best = min([best, *_resized(scheme, kind, shape, wanted)], key=farness)
    difference = bits_of(best) - wanted
    equal = abs(difference) <= TOLERANCE
    note = "" if equal else _why_not(scheme, best, wanted + difference, wanted)
    return EqualBits(scheme, best, wanted + difference, difference, equal, note)


def _kinds(scheme: Scheme, wanted: Fraction) -> tuple[type[PerBlock] | type[PerGroup], ...]:
    """The kinds of groups to try, the scheme's own first."""
    if scheme.family not in RESIZABLE or scheme.bits > wanted:
        return ()
    return (PerBlock,) if type_of_groups(scheme) is PerBlock else (PerGroup, PerBlock)


def _resized(
    scheme: Scheme,
    kind: type[PerBlock] | type[PerGroup],
    shape: tuple[int, ...],
    wanted: Fraction,
) -> Iterator[Scheme]:
    """The scheme with the group sizes next to the wanted bits."""
    # Groups end with each row; blocks only with the tensor.
    length = math.prod(shape) if kind is PerBlock else matrix_shape(shape)[1]
    limit = min(length, MAX_SIZE)
    if scheme.double_quantization:
        limit = min(limit, MAX_DOUBLE_QUANTIZED_BLOCK)

    def resized(size: int) -> Scheme:
        return replace(scheme, granularity=kind(size))

    def is_enough(size: int) -> bool:
        return bit_budget(resized(size), shape).bits_per_parameter <= wanted

    # Bits fall with the size, so bisection finds the sizes on both sides of the wanted bits.
    size = 1 + bisect_left(range(1, limit + 1), True, key=is_enough)
    if size <= limit:
        yield resized(size)
    if size > 1:
        groups = -(-length // (size - 1))
        yield resized(-(-length // groups))


def _why_not(scheme: Scheme, best: Scheme, bits: Fraction, wanted: Fraction) -> str:
    exact = f"{float(bits):.4g}"
    if scheme.bits > wanted:
        return f"its codes alone take {scheme.bits} bits"
    if scheme.family in (Family.MICROSCALING, Family.TWO_LEVEL):
        return f"its group is part of its definition, so it takes {exact} bits"
    if scheme.family not in RESIZABLE:
        return f"it has no group to resize and takes {exact} bits"
    return f"{best.granularity} comes nearest, at {exact} bits"
