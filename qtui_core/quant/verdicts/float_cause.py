"""Why floats do worse on some values: their error depends on where in its octave a value lies."""

from __future__ import annotations

import math

from qtui_core.formats import FloatFormat, get_format
from qtui_core.quant.segments.rounding import ROUNDING_NOISE
from qtui_core.quant.verdicts.blame import Blame, Cause
from qtui_core.quant.verdicts.case import NOTICEABLE_DB, Case, percent
from qtui_core.schemes.scheme import Family, Scheme


def cause_of_cast(case: Case) -> Cause:
    """Why a cast does worse on this tensor than on values near 1."""
    fmt = get_format(case.scheme.format)
    assert isinstance(fmt, FloatFormat)
    if _share_of_subnormals(case, fmt) >= 0.5:
        share = case.report.subnormal / case.finite
        many = "all" if share == 1 else percent(share)
        return Cause(
            Blame.SUBNORMALS,
            f"{many} of its elements lie below the smallest normal number of {fmt.name} "
            f"({float(fmt.min_normal):.2g}), where its steps no longer shrink with the value",
        )
    cause = cause_of_float(case)
    assert cause is not None
    return cause


def _share_of_subnormals(case: Case, fmt: FloatFormat) -> float:
    """The share of the squared error that elements below the smallest normal number make."""
    if not case.report.subnormal:
        return 0.0
    # No normal number is off by more than this: the rest is not theirs.
    nearest = case.scheme.rounding == "nearest"
    most = 2.0 ** -(fmt.mantissa_bits + 1 if nearest else fmt.mantissa_bits)
    proven = 1 - most**2 / case.relative_mse
    step = 2.0 ** (fmt.min_exponent - fmt.mantissa_bits)
    noise = case.report.subnormal * step**2 * ROUNDING_NOISE[case.scheme.rounding]
    return max(proven, min(1.0, noise / (case.report.mse * case.finite)))


def is_wide_float(case: Case) -> bool:
    """Formats with so many octaves that the scale matters little."""
    family = case.scheme.family
    return family is Family.CAST or (element_is_float(case.scheme) and case.scheme.bits == 8)


def element_is_float(scheme: Scheme) -> bool:
    """Whether elements are rounded to a float format."""
    return scheme.element is not None and isinstance(get_format(scheme.element), FloatFormat)


def cause_of_float(case: Case) -> Cause | None:
    """Floats of 8 bits and more: nothing is wrong, but not every value is equally lucky."""
    if not is_wide_float(case):
        return None
    fmt = get_format(case.scheme.element or case.scheme.format)
    assert isinstance(fmt, FloatFormat)
    place = _low_in_octave(case, fmt)
    if place is not None:
        return Cause(
            Blame.OCTAVES,
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
    return Cause(Blame.OCTAVES, text)


def _low_in_octave(case: Case, fmt: FloatFormat) -> str | None:
    """The root mean square as fraction and power, if values there would give this error."""
    if case.scheme.family is not Family.CAST:
        return None
    fraction, exponent = math.frexp(case.rms)
    fraction, exponent = 2 * fraction, exponent - 1
    there = (2.0**-fmt.mantissa_bits / fraction) ** 2 * ROUNDING_NOISE[case.scheme.rounding]
    if fraction > 1.35 or abs(10 * math.log10(there / case.relative_mse)) > NOTICEABLE_DB:
        return None
    return f"{fraction:.3g} x 2^{exponent}"
