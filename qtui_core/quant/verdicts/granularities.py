"""The error of one format under every possible granularity, which shows how far the effect of an
outlier reaches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from qtui_core.answers.tensors import ErrorReport
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.quant.measure import ErrorScan
from qtui_core.quant.scan.scan import scan
from qtui_core.quant.segments.elements import ModelExtent, TensorLike, elements_of
from qtui_core.quant.segments.layout import layout_of, scale_shape
from qtui_core.quant.segments.parallel import Watch
from qtui_core.schemes.granularity import (
    Granularity,
    PerBlock,
    PerColumn,
    PerGroup,
    PerModel,
    PerRow,
    PerTensor,
    PerTile,
    PerToken,
)
from qtui_core.schemes.scheme import Family, Scheme

#: From one scale for everything to one for few elements.
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
class GranularityError:
    """One granularity of a format on a tensor.

    Attributes:
        granularity: its text, `group128`; empty for a cast, which has none.
        report: the error, its Gaussian expectation, bits and bytes.
        scales: the number of scales.
        overhead_bits: bits per element for scales, zero points and columns kept in 16 bits, in
            addition to the code.
    """

    granularity: str
    report: ErrorReport
    scales: int
    overhead_bits: float


@dataclass(frozen=True)
class LeftOut:
    """A granularity that is left out of the comparison, and a sentence that says why."""

    granularity: str
    reason: str


@dataclass(frozen=True)
class GranularityErrors:
    """The rows in the order of the granularities, and those that are left out."""

    rows: tuple[GranularityError, ...]
    left_out: tuple[LeftOut, ...]


def error_by_granularity(
    x: TensorLike,
    scheme: Scheme,
    granularities: Sequence[Granularity] | None = None,
    *,
    model_absmax: ModelExtent | None = None,
    **watch: Unpack[Watch],
) -> GranularityErrors:
    """The error of `scheme` with each of `granularities`, by default the usual ones of its format
    and its own. Other arguments and errors are those of `scan`."""
    schemes, left_out = schemes_by_granularity(scheme, elements_of(x).shape, granularities)
    found = [ErrorScan(candidate) for candidate in schemes]
    scan(x, found, model_absmax=model_absmax, **watch)
    return GranularityErrors(tuple(granularity_error(e.result()) for e in found), left_out)


def schemes_by_granularity(
    scheme: Scheme, shape: tuple[int, ...], granularities: Sequence[Granularity] | None = None
) -> tuple[tuple[Scheme, ...], tuple[LeftOut, ...]]:
    """(the scheme with each granularity, the granularities that are left out): those that the
    scheme cannot have, and those that equal another one in a tensor of this shape. Of equal ones
    the scheme's own is kept, else the first. A cast has no scale and is returned alone."""
    if scheme.granularity is None:
        return (scheme,), ()
    if granularities is None:
        granularities = _usual(scheme, scheme.granularity)
    found: list[Scheme] = []
    left_out: list[LeftOut] = []
    for granularity in granularities:
        try:
            candidate = replace(scheme, granularity=granularity)
        except UsageError as error:
            left_out.append(LeftOut(str(granularity), str(error)))
            continue
        groups = _groups(granularity, shape)
        equal = [other for other in found if _groups(other.granularity, shape) == groups]
        if not equal:
            found.append(candidate)
            continue
        kept, dropped = equal[0], candidate
        if candidate == scheme != kept:
            found[found.index(kept)] = candidate
            kept, dropped = candidate, kept
        if kept != dropped:
            reason = f"In this tensor the groups of {dropped.granularity} are those of"
            left_out.append(LeftOut(str(dropped.granularity), f"{reason} {kept.granularity}."))
    return tuple(found), tuple(left_out)


def granularity_error(report: ErrorReport) -> GranularityError:
    """A measured scheme as a row of the comparison."""
    scheme = report.scheme
    granularity = scheme.granularity
    return GranularityError(
        granularity="" if granularity is None else str(granularity),
        report=report,
        scales=0 if granularity is None else math.prod(scale_shape(granularity, report.shape)),
        overhead_bits=report.bits_per_parameter - scheme.bits,
    )


def _groups(granularity: Granularity | None, shape: tuple[int, ...]) -> tuple[object, bool]:
    """A value that is equal for granularities whose scales are shared in the same way."""
    return layout_of(granularity, shape), isinstance(granularity, PerModel)


def _usual(scheme: Scheme, own: Granularity) -> tuple[Granularity, ...]:
    """The usual granularities from coarse to fine, with the scheme's own added if it is missing."""
    usual = BLOCKS if scheme.family is Family.CODEBOOK else GRANULARITIES
    if scheme.family in (Family.MICROSCALING, Family.TWO_LEVEL):
        return (own, *(g for g in usual if g != own))
    if own in usual:
        return usual
    finer = [
        place
        for place, other in enumerate(usual)
        if type(other) is type(own) and getattr(other, "size", 0) > getattr(own, "size", 0)
    ]
    place = finer[-1] + 1 if finer else _first_of_kind(usual, own)
    return (*usual[:place], own, *usual[place:])


def _first_of_kind(usual: tuple[Granularity, ...], own: Granularity) -> int:
    same = [place for place, other in enumerate(usual) if type(other) is type(own)]
    return same[0] if same else 0
