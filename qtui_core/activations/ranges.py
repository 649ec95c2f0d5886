"""Static and dynamic quantization of activations, on calibration text and on held-out text.

Dynamic: the scale comes from the values themselves, of each token or of the whole tensor. Static:
the range is fixed beforehand from calibration text, and values outside it are clipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from qtui_core.activations.observers import ActivationRecord, Observed, RangeRule
from qtui_core.answers.tensors import RangeError
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.job import IDLE, Job
from qtui_core.quant.elements import Float32
from qtui_core.quant.measure import measure
from qtui_core.schemes.granularity import PerModel, PerRow, PerTensor, PerToken
from qtui_core.schemes.scheme import Family, Scheme

#: The rules that are compared by default.
RULES: tuple[RangeRule, ...] = (RangeRule(), RangeRule(99.99), RangeRule(99.9))
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
        first = self.calibration.sqnr_db
        second = None if self.held_out is None else self.held_out.sqnr_db
        return None if first is None or second is None else first - second


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
    if scheme.family not in RANGED:
        raise UsageError(
            f"{scheme.format} has no scale that could be fixed beforehand: static ranges are "
            f"for the integers, int2 to int8, and the scaled floats such as e4m3."
        )
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
    job: Job = IDLE,
) -> Iterator[RangeReport]:
    """The error of each way on the kept rows of both recordings, each as soon as it is known.

    Raises Cancelled as `job` says.
    """
    unheard = Job(cancelled=job.cancelled)
    for done, way in enumerate(ways, 1):
        error, bits = range_error(calibration.rows, way, unheard)
        other = None if held_out is None else range_error(held_out.rows, way, unheard)[0]
        job.at(done, len(ways))
        yield RangeReport(way, bits, error, other)


def range_error(x: Float32, way: ActivationScheme, job: Job = IDLE) -> tuple[RangeError, float]:
    """The error of one way on `[tokens, features]`, and its bits of storage per value."""
    report = measure(x, way.scheme, model_absmax=way.extent, job=job)
    outside, finite = report.saturated, report.count - report.nonfinite
    if way.extent is not None:
        low, high = (np.float32(end) for end in way.extent)
        outside = int(np.count_nonzero(np.isfinite(x) & ((x < low) | (x > high))))
    clipped = outside / finite if finite else 0.0
    return RangeError(report.sqnr_db, report.relative_mse, clipped), report.bits_per_parameter
