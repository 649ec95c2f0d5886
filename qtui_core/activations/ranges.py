"""Static and dynamic quantization of activations, on calibration text and on held-out text.

Dynamic: the scale comes from the values themselves, of each token or of the whole tensor. Static:
the range is fixed beforehand from calibration text, and values outside it are clipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from qtui_core.activations.observers import (
    ActivationRecord,
    MinMax,
    Observed,
    Percentile,
    RangeRule,
)
from qtui_core.answers.tensors import RangeError
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.job import Job
from qtui_core.quant.elements import Float32
from qtui_core.quant.measure import measure
from qtui_core.schemes.granularity import PerModel, PerRow, PerTensor, PerToken
from qtui_core.schemes.scheme import Family, Scheme

#: The rules that are compared by default.
RULES: tuple[RangeRule, ...] = (MinMax(), Percentile(99.99), Percentile(99.9))
#: Families whose scale can be per token, per tensor, or fixed.
RANGED = (Family.INTEGER, Family.FLOAT)


@dataclass(frozen=True)
class ActivationScheme:
    """One way to quantize activations.

    Attributes:
        kind: "dynamic" or "static".
        words: where the scale comes from, for people: "per token", "99.9%".
        scheme: the scheme for `[tokens, features]`; its granularity is `model` if static.
        extent: (low, high) of the fixed range, None if dynamic.
    """

    kind: Literal["dynamic", "static"]
    words: str
    scheme: Scheme
    extent: tuple[float, float] | None = None


@dataclass(frozen=True)
class RangeReport:
    """The error of an ActivationScheme on calibration text and, if there is some, on held-out text.

    Attributes:
        bits_per_value: of storage, including scales that are computed on the fly.
        loss_db: decibels lost on held-out text against calibration text; None if one of the two has
            no error.
    """

    way: ActivationScheme
    bits_per_value: float
    calibration: RangeError
    held_out: RangeError | None

    @property
    def loss_db(self) -> float | None:
        if self.held_out is None or self.held_out.sqnr_db is None:
            return None
        if self.calibration.sqnr_db is None:
            return None
        return self.calibration.sqnr_db - self.held_out.sqnr_db


def as_written(scheme: Scheme) -> ActivationScheme:
    """The scheme with its own granularity, and scales from the values themselves.

    Raises UsageError for granularity `model`, which for an activation means a fixed range.
    """
    if isinstance(scheme.granularity, PerModel):
        raise UsageError(
            f"{scheme} has one scale for the model; for activations that is a static range."
        )
    where = f"per {scheme.granularity}" if scheme.granularity is not None else "a cast"
    return ActivationScheme("dynamic", where, scheme)


def static(scheme: Scheme, rule: RangeRule, observed: Observed) -> ActivationScheme:
    """The scheme's format, rule and rounding with a fixed range. Values outside are clipped to the
    ends of the range; there are no outlier columns.

    Raises UsageError for a format without a free scale, or if `rule` finds no range.
    """
    _check_ranged(scheme)
    fixed = replace(scheme, granularity=PerModel(), outlier_threshold=None)
    extent = rule.range_of(observed, symmetric=scheme.symmetric)
    return ActivationScheme("static", rule.words, fixed, extent)


def ways_of(scheme: Scheme, observed: Observed) -> list[ActivationScheme]:
    """The ways to quantize an activation in the scheme's format: dynamic per token and per tensor,
    then static by each rule. The scheme as written comes first if it is none of these. A format
    that fixes its own scale, or has none, has only that way."""
    if scheme.family not in RANGED:
        return [as_written(scheme)]
    ways = []
    if not isinstance(scheme.granularity, PerToken | PerRow | PerTensor | PerModel):
        ways.append(as_written(scheme))
    for granularity in (PerToken(), PerTensor()):
        ways.append(as_written(replace(scheme, granularity=granularity)))
    return ways + [static(scheme, rule, observed) for rule in RULES]


def compare_ranges(
    ways: Sequence[ActivationScheme],
    calibration: ActivationRecord,
    held_out: ActivationRecord | None,
    *,
    progress: Callable[[float], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Iterator[RangeReport]:
    """The error of each way on the kept rows of both recordings, each as soon as it is known.

    Raises Cancelled when `cancelled()` is true.
    """
    for done, way in enumerate(ways):
        first = range_error(calibration.rows, way, cancelled=cancelled)
        second = None
        if held_out is not None:
            second = range_error(held_out.rows, way, cancelled=cancelled)[0]
        if progress is not None:
            progress((done + 1) / len(ways))
        yield RangeReport(way, first[1], first[0], second)


def range_error(
    x: Float32, way: ActivationScheme, *, cancelled: Callable[[], bool] | None = None
) -> tuple[RangeError, float]:
    """The error of one way on `[tokens, features]`, and its bits of storage per value."""
    report = measure(x, way.scheme, model_absmax=way.extent, job=Job(cancelled=cancelled))
    clipped = clipped_share(x, way.extent)
    if way.extent is None and report.count > report.nonfinite:
        clipped = report.saturated / (report.count - report.nonfinite)
    found = RangeError(report.sqnr_db, report.relative_mse, clipped)
    return found, report.bits_per_parameter


def clipped_share(x: Float32, extent: tuple[float, float] | None) -> float:
    """The share of the finite elements outside a range; 0.0 if there is no range."""
    if extent is None:
        return 0.0
    finite = np.isfinite(x)
    count = int(np.count_nonzero(finite))
    low, high = (np.float32(end) for end in extent)
    outside = int(np.count_nonzero(finite & ((x < low) | (x > high))))
    return outside / count if count else 0.0


def _check_ranged(scheme: Scheme) -> None:
    if scheme.family not in RANGED:
        raise UsageError(
            f"{scheme.format} has no scale that could be fixed beforehand: static ranges are "
            f"for the integers, int2 to int8, and the scaled floats such as e4m3."
        )
