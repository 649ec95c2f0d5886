"""Why an error is larger or smaller than that of Gaussian values.

Every cause is tested: the error that it can account for is computed, and the cause is named only if
that is at least half of the error in question. The causes of `WORSE` and the reasons of `BETTER`
are tested in order; the first that applies is taken."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto
from functools import cached_property
from typing import TypeVar

from qtui_core.answers.tensors import ErrorReport, OutlierReport, TensorStatistics
from qtui_core.dataclass import dataclass
from qtui_core.formats import FloatFormat, get_format
from qtui_core.quant.coding.levels import plain_levels, shared_scale
from qtui_core.quant.gaussian import gaussian_relative_mse, outlier_relative_mse, usual_absmax
from qtui_core.quant.measure import decibels
from qtui_core.quant.scan.outliers import crowded_columns
from qtui_core.quant.segments.layout import Whole, layout_of, matrix_shape, run_lengths
from qtui_core.quant.segments.process import make_coder
from qtui_core.quant.segments.rounding import ROUNDING_NOISE
from qtui_core.quant.storage import bits_per_parameter
from qtui_core.quantities import percent, plural
from qtui_core.schemes.granularity import PerColumn, PerModel, PerTensor
from qtui_core.schemes.scheme import Family, Scheme

#: Decibels: smaller differences are not mentioned.
NOTICEABLE_DB = 0.5
#: Decibels: beyond this SQNR only the rounding of float32 itself remains.
EXACT_DB = 120.0
#: Kurtosis above which heavy tails, and below which light tails, explain a difference.
HEAVY_TAILS, LIGHT_TAILS = 4.0, 2.5
#: If the mean is this many standard deviations from zero, few values use the levels on the other
#: side.
OFF_CENTRE = 1.0


Fact = TypeVar("Fact")
#: (whether a rule applies, what is then said), in the order in which they are tried.
Rules = tuple[tuple[Callable[[Fact], bool], Callable[[Fact], str]], ...]


def first_rule(rules: Rules[Fact], fact: Fact) -> str:
    """What the first rule that applies says."""
    return next(says(fact) for applies, says in rules if applies(fact))


def nonfinite_sentence(report: ErrorReport) -> str:
    """What is said of elements that are not finite; "" without any."""
    if not report.nonfinite:
        return ""
    rest = "every figure is over the finite rest"
    if report.nonfinite == report.count:
        rest = "no element is finite, so there is nothing to measure"
    return (
        f"{plural(report.nonfinite, 'element is', 'elements are')} NaN or infinite: find out where "
        f"{'it comes' if report.nonfinite == 1 else 'they come'} from first; {rest}."
    )


@dataclass(frozen=True)
class Case:
    """What is known of a tensor under a scheme.

    Attributes:
        report: the measured error of the scheme on the tensor.
        stats, outliers: of the same tensor, if known.
        others: errors of other schemes on the same tensor, which a remedy may recommend.
        stored_bits: bits per parameter of the tensor as it is stored.
    """

    report: ErrorReport
    stats: TensorStatistics | None = None
    outliers: OutlierReport | None = None
    others: tuple[ErrorReport, ...] = ()
    stored_bits: float = math.inf

    @property
    def scheme(self) -> Scheme:
        return self.report.scheme

    @property
    def relative_mse(self) -> float:
        """Squared error over squared elements, 0.0 for a tensor without nonzero elements."""
        return self.report.relative_mse or 0.0

    @property
    def db(self) -> float:
        """The measured SQNR in decibels; infinite if there is no error."""
        return -10 * math.log10(self.relative_mse) if self.relative_mse else math.inf

    @cached_property
    def ordinary(self) -> float:
        """The relative mse of Gaussian values of this shape under ordinary conditions: a cast of
        values near 1, a scale of the tensor instead of the model's, and no columns kept in 16
        bits."""
        scheme = self.scheme
        found = self.report.gaussian_relative_mse
        if scheme.family is Family.CAST:
            found = gaussian_relative_mse(scheme, self.report.shape)
        elif isinstance(scheme.granularity, PerModel):
            own = replace(scheme, granularity=PerTensor())
            found = gaussian_relative_mse(own, self.report.shape)
        elif scheme.outlier_threshold is not None:
            undivided = replace(scheme, outlier_threshold=None)
            found = gaussian_relative_mse(undivided, self.report.shape)
        return found or 0.0

    @property
    def ordinary_db(self) -> float:
        """`ordinary` as an SQNR in decibels; infinite if Gaussian values are kept exactly, as in
        groups of one element."""
        found = decibels(self.ordinary)
        return math.inf if found is None or found > EXACT_DB else found

    @property
    def worse(self) -> float:
        """Decibels by which the SQNR is below that of Gaussian values; negative if it is better."""
        return self.ordinary_db - self.db

    @property
    def rms(self) -> float:
        """Root mean square of the tensor, from its error report."""
        return math.sqrt(self.report.mse / self.relative_mse)

    @property
    def kurtosis(self) -> float | None:
        return None if self.stats is None else self.stats.kurtosis

    @property
    def few_weigh_all(self) -> bool:
        """Whether a few outliers hold almost the whole sum of squares. If k equal elements held all
        of it, the kurtosis of n elements would be n/k."""
        if self.outliers is None or self.stats is None or self.stats.kurtosis is None:
            return False
        return 2 * self.stats.kurtosis * self.outliers.count > self.stats.finite

    @property
    def few_hold_the_energy(self) -> bool:
        """Whether outliers hold half the sum of squares or more."""
        return self.outliers is not None and self.outliers.energy_share >= 0.5

    @property
    def holders(self) -> str:
        """What share of the sum of squares the outliers hold, in words."""
        found = self.outliers
        assert found is not None
        held, verb = plural(found.count, "element"), "holds" if found.count == 1 else "hold"
        share = percent(found.energy_share)
        return f"{held} beyond {found.sigma:g} sigma {verb} {share} of its energy"

    @property
    def zero_share(self) -> float:
        """The share of zeros among finite elements; 0.0 without statistics."""
        stats = self.stats
        return stats.zeros / stats.finite if stats is not None and stats.finite else 0.0

    @property
    def offset(self) -> float | None:
        """The distance of the mean from zero in standard deviations, infinite for a constant; None
        without statistics."""
        stats = self.stats
        if stats is None or stats.mean is None or stats.std is None:
            return None
        return abs(stats.mean) / stats.std if stats.std else math.inf

    @property
    def finite(self) -> int:
        """How many elements are finite."""
        return self.report.count - self.report.nonfinite

    @property
    def groups(self) -> int:
        """Groups that share a scale; 0 for a cast."""
        return sum(run_lengths(self.scheme.granularity, self.report.shape).values())

    def bits_of(self, scheme: Scheme) -> float:
        """Bits per parameter of the tensor under another scheme without kept columns."""
        return bits_per_parameter(scheme, self.report.shape)

    def saves(self, scheme: Scheme, columns: int = 0) -> bool:
        """Whether a scheme, with `columns` columns kept in 16 bits, takes fewer bits than the
        stored values. If not, it is no remedy, because the stored values have no error."""
        if scheme.outlier_threshold is not None:
            columns = max(columns, self.report.outlier_columns)
        return bits_per_parameter(scheme, self.report.shape, columns) < self.stored_bits


#: The smallest scale by family, in words; for other families it is 2^-126.
SMALLEST_SCALES = {
    Family.CODEBOOK: "1e-38",
    Family.MICROSCALING: "2^-127",
    Family.TERNARY: "1e-5",
    Family.TWO_LEVEL: "2^-120 for the tensor",
}


class CauseKind(Enum):
    """The kind of a cause, on which the remedy depends."""

    SUBNORMALS = auto()
    OCTAVES = auto()
    MODEL_SCALE = auto()
    SMALLEST_SCALE = auto()
    OUTLIERS = auto()
    CUT_OFF = auto()
    SPREAD = auto()
    LIGHT_TAILS = auto()
    LEVELS = auto()
    OFF_CENTRE = auto()
    #: The error is that of Gaussian values or smaller.
    LUCK = auto()
    SCHEME = auto()


@dataclass(frozen=True)
class Cause:
    """Why an error differs. `columns` is how many columns are named; `hit` is the share of groups
    with an outlier."""

    kind: CauseKind
    text: str
    columns: int = 0
    hit: float = 1.0


def find_cause(case: Case) -> Cause:
    """Why the scheme does worse on this tensor than on Gaussian values."""
    return next(cause for test in WORSE if (cause := test(case)) is not None)


# --- floats, whose error depends on where a value lies in its octave


def _subnormals(case: Case) -> Cause | None:
    if case.scheme.family is not Family.CAST:
        return None
    fmt = get_format(case.scheme.format)
    assert isinstance(fmt, FloatFormat)
    if _error_of_subnormals(case, fmt) < 0.5:
        return None
    share = case.report.subnormal / case.finite
    many = "all" if share == 1 else percent(share)
    return Cause(
        CauseKind.SUBNORMALS,
        f"{many} of its elements lie below the smallest normal number of {fmt.name} "
        f"({float(fmt.min_normal):.2g}), where its steps no longer shrink with the value",
    )


def _error_of_subnormals(case: Case, fmt: FloatFormat) -> float:
    """The share of the squared error from elements below the smallest normal number."""
    if not case.report.subnormal:
        return 0.0
    # This bounds the error of normal numbers; the rest is from subnormals.
    nearest = case.scheme.rounding == "nearest"
    most = 2.0 ** -(fmt.mantissa_bits + 1 if nearest else fmt.mantissa_bits)
    proven = 1 - most**2 / case.relative_mse
    step = 2.0 ** (fmt.min_exponent - fmt.mantissa_bits)
    noise = case.report.subnormal * step**2 * ROUNDING_NOISE[case.scheme.rounding]
    return max(proven, min(1.0, noise / (case.report.mse * case.finite)))


def _octaves(case: Case) -> Cause | None:
    """Floats of 8 bits and more: the relative error depends on the place of a value in its
    octave."""
    if not is_wide_float(case):
        return None
    fmt = get_format(case.scheme.element or case.scheme.format)
    assert isinstance(fmt, FloatFormat)
    place = _low_in_octave(case, fmt)
    if place is not None:
        return Cause(
            CauseKind.OCTAVES,
            f"its values lie low in their octave (root mean square {case.rms:.3g} = {place}), "
            f"where the step of a float is largest beside the value",
        )
    text = (
        "the error of a float depends on where between two powers of two a value lies, and "
        "these lie worse than Gaussian ones"
    )
    top = case.outliers.top[0] if case.outliers is not None and case.outliers.top else None
    if top is not None:
        energy = top.value**2 / (case.rms**2 * case.finite)
        if energy >= 0.5:
            text += (
                f" (element [{top.row}, {top.column}] = {top.value:.5g} alone holds "
                f"{percent(min(energy, 0.999))} of the energy)"
            )
    return Cause(CauseKind.OCTAVES, text)


def _low_in_octave(case: Case, fmt: FloatFormat) -> str | None:
    """The root mean square as text, a fraction times a power of two, if values at that place in
    their octave would give this error; else None."""
    if case.scheme.family is not Family.CAST:
        return None
    fraction, exponent = math.frexp(case.rms)
    fraction, exponent = 2 * fraction, exponent - 1
    there = (2.0**-fmt.mantissa_bits / fraction) ** 2 * ROUNDING_NOISE[case.scheme.rounding]
    if fraction > 1.35 or abs(10 * math.log10(there / case.relative_mse)) > NOTICEABLE_DB:
        return None
    return f"{fraction:.3g} x 2^{exponent}"


def is_wide_float(case: Case) -> bool:
    """Whether the format has so many octaves that the scale matters little."""
    family = case.scheme.family
    return family is Family.CAST or (_element_is_float(case.scheme) and case.scheme.bits == 8)


def _element_is_float(scheme: Scheme) -> bool:
    """Whether elements are rounded to a float format."""
    return scheme.element is not None and isinstance(get_format(scheme.element), FloatFormat)


# --- scales


def _beside_kept_columns(case: Case) -> Cause | None:
    """Columns are kept in 16 bits. The known outliers include those in them, so they explain
    nothing."""
    columns = case.report.outlier_columns
    if not columns:
        return None
    kept = plural(columns, "column")
    return Cause(
        CauseKind.SPREAD,
        f"beside the {kept} kept in 16 bits its values still spread further than those",
    )


def _model_scale(case: Case) -> Cause | None:
    expected = case.report.gaussian_relative_mse or 0.0
    noticeable = 10 ** (NOTICEABLE_DB / 10) * case.ordinary
    if not isinstance(case.scheme.granularity, PerModel) or expected <= noticeable:
        return None
    if expected < case.relative_mse / 2:
        return None
    return Cause(
        CauseKind.MODEL_SCALE,
        f"the scale of the model is too wide for this tensor{_all_lost(case)}",
    )


def _smallest_scale(case: Case) -> Cause | None:
    extent = make_coder(case.scheme).smallest_extent
    if not 0 < case.rms < extent:
        return None
    if outlier_relative_mse(case.scheme, extent, case.rms) < case.relative_mse / 2:
        return None
    smallest = SMALLEST_SCALES.get(case.scheme.family, "2^-126")
    return Cause(
        CauseKind.SMALLEST_SCALE,
        f"its values are too small for a scale, which is {smallest} or more{_all_lost(case)}",
    )


def _all_lost(case: Case) -> str:
    return ", and every value became 0" if case.relative_mse == 1.0 else ""


def _outliers(case: Case) -> Cause | None:
    """Outliers, if the groups that contain them can account for the error."""
    outliers, groups = case.outliers, case.groups
    if outliers is None or not outliers.count or not outliers.top or not groups:
        return None
    in_columns = isinstance(case.scheme.granularity, PerColumn) and outliers.columns
    hit = min(len(outliers.columns) if in_columns else outliers.count, groups) / groups
    rest = max(0.0, 1 - outliers.energy_share)  # of the energy
    background = case.rms * math.sqrt(rest * case.finite / max(1, case.finite - outliers.count))
    excess = case.relative_mse - case.ordinary * rest
    if background > 0:
        if outliers.count > groups or groups == 1:
            extent = abs(outliers.top[0].value)
        else:
            extent = case.rms * math.sqrt(outliers.energy_share * case.finite / outliers.count)
        length = max(1, case.finite // groups)
        stretched = outlier_relative_mse(case.scheme, extent, background, length)
        if hit * rest * (stretched - case.ordinary) < excess / 2:
            return None
    many = plural(outliers.count, "element")
    scales = "its scale" if outliers.count == 1 or groups == 1 else "the scales"
    verb = "stretches" if outliers.count == 1 else "stretch"
    text = f"{many} beyond {outliers.sigma:g} sigma {verb} {scales}"
    columns, held = crowded_columns(outliers)
    if columns:
        where = plural(columns, "column")
        verb = "has" if columns == 1 else "have"
        text += f", and {where} of {outliers.column_total:,} {verb} {percent(held)} of them"
    return Cause(CauseKind.OUTLIERS, text, columns, hit)


def _cut_off(case: Case) -> Cause | None:
    """Power-of-two scales that clip the largest values. The loss is computed as if values near the
    largest were spread evenly."""
    stats, scheme = case.stats, case.scheme
    if scheme.family is not Family.MICROSCALING or stats is None or stats.kurtosis is None:
        return None
    limit = float(plain_levels(scheme)[-1]) * shared_scale(scheme, stats.absmax)
    beyond = stats.absmax - limit
    if beyond <= 0 or stats.kurtosis >= LIGHT_TAILS:
        return None
    lost = beyond**3 / (3 * stats.absmax)  # the mean over evenly spread values
    if lost < (case.relative_mse - case.ordinary) * case.rms**2 / 2:
        return None
    return Cause(
        CauseKind.CUT_OFF,
        f"under the rule {scheme.scale_rule} magnitudes beyond {limit:.3g} are cut off, and its "
        f"values reach {stats.absmax:.3g}",
    )


# --- the shape of the distribution, if there is no single cause


def _few_hold_the_energy(case: Case) -> Cause | None:
    if case.outliers is None or not case.few_hold_the_energy:
        return None
    what = "it is" if case.outliers.count == 1 else "they are"
    return Cause(
        CauseKind.LEVELS, f"{case.holders}, and {what} kept less well than Gaussian values"
    )


def _heavy_tails(case: Case) -> Cause | None:
    if case.kurtosis is None or case.kurtosis <= HEAVY_TAILS:
        return None
    return Cause(
        CauseKind.SPREAD, f"its tails are heavy (kurtosis {case.kurtosis:.1f}, a Gaussian has 3)"
    )


def _wide_extent(case: Case) -> Cause | None:
    """A single scale for the tensor, and a largest magnitude that is large for its size."""
    stats = case.stats
    whole = isinstance(layout_of(case.scheme.granularity, case.report.shape), Whole)
    if stats is None or not whole or case.finite == 1:  # a single value is as large as itself
        return None
    usual = usual_absmax(case.finite)
    ratio = stats.absmax / case.rms
    if 20 * math.log10(ratio / usual) < min(case.worse, 60.0) / 2:
        return None
    stretched = outlier_relative_mse(case.scheme, stats.absmax, case.rms, case.finite)
    if stretched < case.relative_mse / 2:
        return None
    return Cause(
        CauseKind.SPREAD,
        f"its largest magnitude is {ratio:.1f} times its root mean square, where a Gaussian of "
        f"this size reaches {usual:.1f}",
    )


def _off_centre(case: Case) -> Cause | None:
    if case.offset is None or case.offset < OFF_CENTRE:
        return None
    text = (
        f"its mean is {case.offset:.3g} standard deviations from zero, so most of its values share "
        f"the levels of {case.scheme.format} on one side of it"
    )
    if case.offset == math.inf:
        text = f"its one value lies between two levels of {case.scheme.format}"
    return Cause(CauseKind.OFF_CENTRE, text)


def _light_tails(case: Case) -> Cause | None:
    scheme = case.scheme
    even = scheme.family in (Family.INTEGER, Family.TERNARY) or not (
        scheme.element is None or _element_is_float(scheme)
    )
    if case.kurtosis is None or case.kurtosis >= LIGHT_TAILS or even:
        return None
    return Cause(
        CauseKind.LIGHT_TAILS,
        f"it has almost no tails (kurtosis {case.kurtosis:.1f}, a Gaussian has 3), and far from "
        f"zero the levels of {scheme.format} are far apart",
    )


def _wide_steps(case: Case) -> Cause | None:
    """Integers with large steps. If values lie evenly between the levels, as with 4 bits and more,
    the error is proportional to the squares of the steps."""
    even = case.report.even_mse
    if even is None or case.scheme.bits < 4 or not case.ordinary:
        return None
    times = even / case.rms**2 / case.ordinary
    if times <= 1 or 10 * math.log10(times) < case.worse / 2:
        return None
    return Cause(
        CauseKind.SPREAD,
        f"the squares of its steps, which the largest values of its groups set, are on average "
        f"{times:.2g} times those of Gaussian values with the same energy",
    )


def _between_levels(case: Case) -> Cause:
    return Cause(
        CauseKind.LEVELS,
        f"its values lie further from the levels of {case.scheme.format} than Gaussian ones",
    )


WORSE: tuple[Callable[[Case], Cause | None], ...] = (
    _subnormals,
    _beside_kept_columns,
    _model_scale,
    _smallest_scale,
    _outliers,
    _cut_off,
    _octaves,
    _few_hold_the_energy,
    _heavy_tails,
    _wide_extent,
    _off_centre,
    _light_tails,
    _wide_steps,
    _between_levels,
)


def find_advantage(case: Case) -> Cause:
    """Why the scheme does better on this tensor than on Gaussian values."""
    return Cause(CauseKind.LUCK, first_rule(BETTER, case))


def _kept(case: Case) -> str:
    columns = case.report.outlier_columns
    verb = "is" if columns == 1 else "are"
    of_all = f"of {matrix_shape(case.report.shape)[1]:,}"
    return f"{plural(columns, 'column')} {of_all} {verb} kept in 16 bits"


def _near_numbers(case: Case) -> str:
    return f"its values lie closer to the numbers of {case.scheme.format} than Gaussian ones"


def _far_from_zero(case: Case) -> str:
    if case.offset == math.inf:
        return "its one value lies close to a level"
    return (
        f"its mean is {case.offset:.3g} standard deviations from zero, so its values are large "
        f"beside the steps between their levels"
    )


BETTER: Rules[Case] = (
    (lambda case: case.report.outlier_columns > 0, _kept),
    (lambda case: case.scheme.family is Family.CAST, _near_numbers),
    (
        lambda case: case.few_hold_the_energy,
        lambda case: (
            f"{case.holders}, so this figure is mostly about "
            f"{'it' if case.outliers and case.outliers.count == 1 else 'them'}"
        ),
    ),
    (is_wide_float, _near_numbers),
    (
        lambda case: case.zero_share > 0.1,
        lambda case: f"{case.zero_share:.0%} of its elements are zero, which costs nothing",
    ),
    (lambda case: case.offset is not None and case.offset >= OFF_CENTRE, _far_from_zero),
    (
        lambda case: case.kurtosis is not None and case.kurtosis < LIGHT_TAILS,
        lambda case: f"it has almost no tails (kurtosis {case.kurtosis:.1f}, a Gaussian has 3)",
    ),
    (
        lambda case: True,
        lambda case: "its values lie closer to the levels of their groups than Gaussian ones",
    ),
)
