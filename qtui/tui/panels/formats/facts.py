"""The facts about the value in the chosen format, as labelled lines."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from qtui.screen.picker.picking import PickerRow, Picking
from qtui.screen.widgets.facts import Fact
from qtui.tui.panels.formats.rows import LOST, compact, fitted
from qtui.tui.panels.formats.state import FormatsState
from qtui_core.formats import (
    Exact,
    FloatFormat,
    Format,
    Interval,
    IntFormat,
    Kind,
    rounding_interval,
)
from qtui_core.formats.decimals import exact_fraction_text, format_rounded
from qtui_core.formats.pair import relative_text
from qtui_core.formats.table import FormatRow


def value_facts(state: FormatsState, row: FormatRow, width: int) -> tuple[Fact, ...]:
    """The value in the chosen format, for a column of `width` cells."""
    fmt = row.format
    heading = Fact("", f"{fmt.title} {row.hex}".strip(), row.kind.value if row.kind else "")
    if row.decoded is None or row.value is None:
        return (heading, Fact("value", "no code for it", tone="warning"))
    room = max(10, width - 12)
    facts = [heading]
    facts += _field_facts(row)
    facts.append(Fact("value", fitted(row.value, room)))
    facts.append(Fact("exactly", exact_fraction_text(row.value)))
    facts.append(_error_fact(row))
    ulp = "none" if row.ulp is None else fitted(row.ulp, 12)
    facts.append(Fact("ulp", ulp, "" if row.ulp is None else _power(row.ulp)))
    facts.append(Fact("below", _neighbour(row.below, room)))
    facts.append(Fact("above", _neighbour(row.above, room)))
    facts.append(Fact("rounds here", interval_text(interval_of(state, row))))
    return tuple(facts)


def _field_facts(row: FormatRow) -> list[Fact]:
    decoded = row.decoded
    assert decoded is not None
    fmt = row.format
    facts = []
    if fmt.signed:
        facts.append(
            Fact("s sign", row.sign_bits, "negative" if decoded.sign else "positive", "sign")
        )
    if not isinstance(fmt, FloatFormat):
        steps = f"{decoded.value / fmt.step} steps of {format_rounded(fmt.step, 6)}"
        return [*facts, Fact("i integer", row.mantissa_bits, steps, "mantissa")]
    if decoded.exponent is None:
        meaning = "all ones" if "0" not in row.exponent_bits else f"field {decoded.exponent_field}"
    elif decoded.kind in (Kind.SUBNORMAL, Kind.ZERO):
        meaning = f"field 0: exponent 1 - {fmt.bias} = {decoded.exponent}"
    else:
        meaning = f"{decoded.exponent_field} - {fmt.bias} = {decoded.exponent}"
    facts.append(Fact("e exponent", row.exponent_bits, meaning, "exponent"))
    if decoded.significand is not None:
        hidden = "1" if decoded.significand >= 1 else "0"
        text = f"{hidden}.{row.mantissa_bits or '0'}"
        number = f"= {fitted(decoded.significand, 12)}"
        facts.append(Fact("m mantissa", text, number, "mantissa"))
    else:
        facts.append(Fact("m mantissa", row.mantissa_bits, tone="mantissa"))
    return facts


def _error_fact(row: FormatRow) -> Fact:
    if row.outcome in LOST:
        return Fact("error", LOST[row.outcome], _relative(row), "warning")
    if row.error is None:
        return Fact("error", "none to give")
    if row.error == 0:
        return Fact("error", "0", "exact")
    sign = "+" if row.error > 0 else ""
    return Fact("error", sign + fitted(row.error, 12), _relative(row))


def _relative(row: FormatRow) -> str:
    return "" if row.relative_error is None else f"({relative_text(row)})"


def _neighbour(value: Exact | None, room: int) -> str:
    return "none" if value is None else fitted(value, room)


def _power(value: Fraction) -> str:
    """ "= 2^-7" for a power of two. Every ulp is one."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return f"= 2^{exponent}"


def interval_of(state: FormatsState, row: FormatRow) -> Interval | None:
    """The real numbers that become the row's code under the chosen rounding mode."""
    if row.code is None:
        return None
    return rounding_interval(row.format, row.code, state.rounding, state.saturate)


def interval_text(interval: Interval | None) -> str:
    """ "[0.0976562, 0.105469)": a bracket includes its end, a parenthesis does not."""
    if interval is None or interval.is_empty:
        return "nothing does"
    opening = "[" if interval.lower_closed else "("
    closing = "]" if interval.upper_closed else ")"
    low, high = fitted(interval.lower, 11), fitted(interval.upper, 11)
    return f"{opening}{low}, {high}{closing}"


def limit_facts(fmt: Format) -> tuple[Fact, ...]:
    """The limits of the format."""
    if not isinstance(fmt, FloatFormat):
        return (
            Fact("", f"{fmt.title} holds", reach(fmt)),
            Fact("max", fitted(fmt.max, 14)),
            Fact("min", fitted(fmt.min, 14)),
            Fact("step", fitted(fmt.step, 14), "everywhere"),
            Fact("digits", f"{fmt.decimal_digits:.1f}"),
            Fact("bits", str(fmt.bits)),
        )
    split = f"{int(fmt.signed)} + {fmt.exponent_bits} + {fmt.mantissa_bits}"
    facts = [
        Fact("", f"{fmt.title} holds", reach(fmt)),
        Fact("max", fitted(fmt.max, 14)),
        Fact("min normal", fitted(fmt.min_normal, 12), f"= 2^{fmt.min_exponent}"),
    ]
    subnormal = fmt.min_subnormal
    if subnormal is None:
        facts.append(Fact("subnormal", "none"))
    else:
        facts.append(Fact("subnormal", fitted(subnormal, 12), _power(subnormal)))
    facts += [
        Fact("epsilon", fitted(fmt.epsilon, 12), f"= 2^-{fmt.mantissa_bits}"),
        Fact("digits", f"{fmt.decimal_digits:.1f}"),
        Fact("bits", split, f"bias {fmt.bias}"),
        Fact("specials", _specials(fmt)),
    ]
    return tuple(facts)


def reach(fmt: Format) -> str:
    """ "0.00195 to 448": the magnitudes of a float, the values of an integer."""
    low = fmt.min if isinstance(fmt, IntFormat) else fmt.min_positive
    return f"{compact(low, 9)} to {compact(fmt.max, 9)}"


def _specials(fmt: FloatFormat) -> str:
    if fmt.has_infinity:
        return "infinities and NaN"
    return "NaN, no infinity" if fmt.has_nan else "none, all are finite"


def format_picking(rows: Sequence[FormatRow], present: Format) -> Picking:
    """Another format for the bit cursor."""

    def row(at: int) -> PickerRow:
        found = rows[at]
        fmt, value = found.format, found.value
        becomes = "it has no code for the value"
        if value is not None:
            becomes = f"{compact(found.given, 14)} becomes {compact(value, 14)}"
        facts = f"{reach(fmt)}  {fmt.bits} bits"
        return PickerRow(facts, f"{fmt.title} holds {reach(fmt)} in {fmt.bits} bits: {becomes}.")

    return Picking(
        title="Format",
        names=[each.format.title for each in rows],
        row=row,
        none="No format has these letters in this order.",
        at=[each.format for each in rows].index(present),
    )
