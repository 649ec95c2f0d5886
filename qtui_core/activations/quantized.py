"""Quantized activations: static and dynamic ranges, the error of a layer's output, and a sentence
about each.

Dynamic: the scale comes from the values themselves, of each token or of the whole tensor. Static:
the range is fixed beforehand from calibration text, and values outside it are clipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from qtui_core.activations.observers import ActivationRecord, Float64, Observed, RangeRule
from qtui_core.answers import RangeError
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.job import IDLE, Job
from qtui_core.quant import Scheme, quantize
from qtui_core.quant.columns import MIN_ROWS, STANDS_OUT, ColumnMagnitude, ColumnStatistics
from qtui_core.quant.elements import Float32
from qtui_core.quant.measure import decibels, measure
from qtui_core.quantities import db_text, plural
from qtui_core.schemes.granularity import PerModel, PerRow, PerTensor, PerToken
from qtui_core.schemes.scheme import Family

#: The rules that are compared by default.
RULES: tuple[RangeRule, ...] = (RangeRule(), RangeRule(99.99), RangeRule(99.9))
#: Families whose scale can be per token, per tensor, or fixed.
RANGED = (Family.INTEGER, Family.FLOAT)
#: The most elements of a weight for `output_errors`: the layer and one quantized copy are held as
#: float32.
MAX_ELEMENTS = 1 << 28
#: The most multiplications of one product that still take only seconds.
MAX_WORK = 1 << 35
LEAST_TOKENS = 16
#: Decibels: a fixed range this close to scales per token is good enough.
ENOUGH_DB = 1.0
#: Decibels: of two errors one dominates if the other is smaller by this much.
DECIDES_DB = 6.0
#: Decibels: below this SQNR an activation has lost more than 4% of its energy to noise.
POOR_DB = 14.0
#: Decibels: below this SQNR nothing of an activation is left.
NOTHING_DB = 0.1


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
    """The scheme with its own granularity, and scales from the values themselves. Granularity
    `model` is not for it, which for an activation means a fixed range."""
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


@dataclass(frozen=True, eq=False)
class OutputError:
    """The error of the output of a layer, y = x W^T + b, over some tokens.

    Attributes:
        relative_mse: sum of (y' - y)^2 over sum of y^2, where y is the exact output with its bias;
            None if the output is zero everywhere.
        sqnr_db: -10 log10(relative_mse), decibels; None if there is no error.
        channel_squared_error: float64 `[out]`, the first sum for each output channel.
    """

    relative_mse: float | None
    channel_squared_error: Float64

    @property
    def sqnr_db(self) -> float | None:
        return decibels(self.relative_mse)

    @property
    def channel_share(self) -> Float64:
        """The share of the squared error in each output channel, float64 `[out]`; zeros if there is
        no error."""
        total = self.channel_squared_error.sum()
        return self.channel_squared_error / total if total else self.channel_squared_error


def tokens_for(weight_shape: tuple[int, int], available: int) -> int:
    """How many of the available tokens `output_errors` can process in seconds."""
    elements = max(1, weight_shape[0] * weight_shape[1])
    return min(available, max(LEAST_TOKENS, MAX_WORK // elements))


def output_errors(
    x: Float32,
    weight: Float32,
    bias: Float32 | None,
    weight_schemes: Sequence[Scheme | None],
    activation_schemes: Sequence[ActivationScheme | None],
    *,
    transposed: bool = False,
    model_absmax: tuple[float, float] | None = None,
    job: Job = IDLE,
) -> list[list[OutputError]]:
    """The error for each weight scheme (first index) with each activation scheme (second); None
    leaves the weights or the activations unquantized.

    With dX = X' - X and dW = W' - W, the error is dX W'^T + X dW^T and is computed in this form:
    the difference of two float32 outputs would lose small errors.

    Args:
        x: float32 `[tokens, in]`; tokens with a NaN or infinity are left out.
        weight: float32 `[out, in]`; if `transposed`, `[in, out]`, and quantized in this layout.
        bias: float32 `[out]`. It is part of the output but not of the error.
        model_absmax: as for `quantize`, for weight schemes with granularity `model`.

    Raises:
        Cancelled: as `job` says.
        UsageError: no token is finite.
    """
    x = x[np.isfinite(x).all(axis=1)]
    if not x.shape[0]:
        raise UsageError("No captured token is finite, so the layer has no output to compare.")
    quantized = sum(way is not None for way in activation_schemes)
    steps = 1 + sum(quantized + (scheme is not None) for scheme in weight_schemes)
    done = 0

    def product(left: Float32, right: Float32) -> Float32:
        nonlocal done
        result: Float32 = left @ (right if transposed else right.T)
        done += 1
        job.at(done, steps)
        return result

    job.check()

    y = product(x, weight)
    if bias is not None:
        y += bias
    total = float(_channel_squares(y).sum())
    width = y.shape[1]
    del y
    changes = [
        None if w is None else quantize(x, w.scheme, model_absmax=w.extent).dequantize() - x
        for w in activation_schemes
    ]
    table = []
    for scheme in weight_schemes:
        used, from_weight = weight, None
        if scheme is not None:
            used = quantize(weight, scheme, model_absmax=model_absmax).dequantize()
            from_weight = product(x, used - weight)
        row = []
        for change in changes:
            error = from_weight
            if change is not None:
                from_activation = product(change, used)
                error = from_activation if error is None else from_activation + error
            wrong = np.zeros(width) if error is None else _channel_squares(error)
            relative = float(wrong.sum()) / total if total else None
            row.append(OutputError(relative, wrong))
        table.append(row)
    return table


def _channel_squares(y: Float32) -> Float64:
    return np.einsum("ij,ij->j", y, y, dtype=np.float64)


def columns_of(observed: Observed) -> ColumnStatistics:
    """The channels of an activation as columns, over all tokens, not only the kept ones."""
    absmax, rms = observed.channel_absmax.astype(float), observed.second_moment**0.5
    medians = (float(np.median(side)) if side.size else 0.0 for side in (absmax, rms))
    return ColumnStatistics(observed.tokens, absmax, rms, *medians)


def standing_out(columns: ColumnStatistics) -> list[ColumnMagnitude]:
    """The channels whose absmax is more than STANDS_OUT times that of the median channel, the
    largest first. They widen a range per tensor."""
    return [c for c in columns.standing_out() if c.absmax_ratio > STANDS_OUT]


def channels_in_words(columns: ColumnStatistics) -> str:
    """Which channels stand out from the median channel, in words."""
    outstanding, total = standing_out(columns), columns.absmax.size
    if not columns.absmax.any():
        return "every value is zero"
    if not columns.median_absmax:
        hold = plural(int(np.count_nonzero(columns.absmax)), "channel holds", "channels hold")
        return f"{hold} all of its values other than zero, of {total:,} channels"
    if columns.rows < MIN_ROWS:
        return f"{plural(columns.rows, 'token')} cannot tell whether a channel stands out"
    if not outstanding:
        largest = columns.largest(1)[0]
        return f"no channel stands out (the largest is {largest.absmax_ratio:.2g}x the median)"
    times = f"{outstanding[0].absmax_ratio:.3g}x the median"
    if len(outstanding) == 1:
        return f"channel {outstanding[0].column:,} of {total:,} reaches {times}"
    return f"{len(outstanding):,} of {total:,} channels reach up to {times}"


def conclude_ranges(
    subject: str, columns: ColumnStatistics, reports: Sequence[RangeReport], nonfinite: int = 0
) -> str:
    """What calibration gains for this activation, and what to use. `reports` are those of
    `ways_of`, not empty; `subject` names the activation: "Input of down_proj". `nonfinite` of its
    values are NaN or infinite."""
    start = f"{subject}: {channels_in_words(columns)}"
    if nonfinite:
        of, them = plural(nonfinite, "value is", "values are"), "it" if nonfinite == 1 else "them"
        lost = f"{of} NaN or infinite: find the layer that makes {them} first"
        if nonfinite == columns.rows * columns.absmax.size:
            return f"{subject}: {lost}; none is finite, so there is nothing to quantize."
        start = f"{subject}: {lost}. Of the finite rest: {channels_in_words(columns)}"
    scheme = reports[0].way.scheme
    if scheme.family not in RANGED:
        cast = scheme.family is Family.CAST
        why = "a cast has no scales" if cast else "its scales come from the values themselves"
        kept = _words(_kept(reports[0]))
        return f"{start}; {scheme} keeps {kept} and needs no calibration, because {why}."
    dynamic = max((r for r in reports if r.way.kind == "dynamic"), key=_rank)
    fixed = [r for r in reports if r.way.kind == "static"]
    first, best = fixed[0], max(fixed, key=_rank)
    keeps = f"{scheme.format} {dynamic.way.words} keeps {_words(_kept(dynamic))}"
    unseen = " on text it has not seen" if first.held_out is not None else ""
    static = f"a static {first.way.words} range {_words(_kept(first))}{unseen}"
    advice = f"use {dynamic.way.words}"
    if max(_rank(dynamic), _rank(best)) < NOTHING_DB:
        advice = "nothing is left of it, so look at its values first"
    elif max(_rank(dynamic), _rank(best)) < POOR_DB:
        advice = "take a format with more bits"
    elif _rank(best) >= _rank(dynamic) - ENOUGH_DB:
        name = best.way.words if best is first else f"{best.way.words} of the magnitudes"
        advice = f"the static range from {name} is enough, and costs nothing at run time"
    return f"{start}; {keeps}, {static}: {advice}."


def conclude_output(
    label: str, weights: OutputError, activations: OutputError, both: OutputError
) -> str:
    """What the errors of weights and activations do to the output of the layer, and which
    dominates."""
    alone = (weights.sqnr_db, activations.sqnr_db)
    if alone == (None, None):
        return f"Output under {label}: exact, as are the weights and the activations."
    gap = _or_exact(alone[1]) - _or_exact(alone[0])
    decide = "both count, improve both"
    if gap >= DECIDES_DB:
        decide = "the weights decide, give them the bits"
    elif gap <= -DECIDES_DB:
        decide = "the activations decide, give them bits or finer scales"
    return (
        f"Output under {label}: {_words(both.sqnr_db, 'exact')} (weights alone "
        f"{_words(alone[0], 'exact')}, activations alone {_words(alone[1], 'exact')}): {decide}."
    )


def _kept(report: RangeReport) -> float | None:
    """The SQNR that counts: on held-out text if there is some, else on the calibration text."""
    return (report.held_out or report.calibration).sqnr_db


def _rank(report: RangeReport) -> float:
    return _or_exact(_kept(report))


def _or_exact(sqnr_db: float | None) -> float:
    return float("inf") if sqnr_db is None else sqnr_db


def _words(sqnr_db: float | None, exact: str = "everything") -> str:
    return exact if sqnr_db is None else f"{db_text(sqnr_db)} dB"
