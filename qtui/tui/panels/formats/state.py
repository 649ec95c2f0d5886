"""The state of the Formats panel, and the functions that change it. Has no widgets."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

from qtui_core.dataclass import dataclass
from qtui_core.formats import (
    E4M3,
    FORMATS,
    Exact,
    FloatFormat,
    Format,
    Rounding,
    decode,
    next_code_down,
    next_code_up,
    ulp,
)
from qtui_core.formats.decimals import format_exact
from qtui_core.formats.table import FormatRow, describe_code, describe_value
from qtui_core.formats.text import parse_input, parse_value

FORMAT_LIST: tuple[Format, ...] = tuple(FORMATS.values())
RANDOM_BIT_COUNT = 32

# Setting on the screen -> whether values saturate; None is each format's own rule.
SATURATION: dict[str, bool | None] = {"by format": None, "on": True, "off": False}


@dataclass(frozen=True)
class FormatsState:
    """One value, and how it is encoded in every format.

    If the value was made from a code, `code` has its bits and `source` its format. That format then
    shows exactly these bits (such as one NaN of many, or -0) and does not encode the value again.
    """

    value: Exact
    origin: str
    rounding: Rounding = Rounding.NEAREST_EVEN
    saturate: bool | None = None
    chosen: Format = E4M3
    source: Format | None = None
    code: int | None = None
    #: The format that stays beside the chosen one.
    pinned: Format | None = None
    random_bits: int = 1 << (RANDOM_BIT_COUNT - 1)

    def rows(self) -> tuple[FormatRow, ...]:
        """The value in every format, in the catalogue's order."""
        rows = describe_value(
            self.value,
            self.rounding,
            self.saturate,
            random_bits=self.random_bits,
            random_bit_count=RANDOM_BIT_COUNT,
        )
        if self.source is None or self.code is None:
            return rows
        given = describe_code(self.source, self.code)
        return tuple(given if row.format is self.source else row for row in rows)

    def row(self, fmt: Format) -> FormatRow:
        """The value in one format."""
        if fmt is self.source and self.code is not None:
            return describe_code(fmt, self.code)
        (row,) = describe_value(
            self.value,
            self.rounding,
            self.saturate,
            (fmt,),
            random_bits=self.random_bits,
            random_bit_count=RANDOM_BIT_COUNT,
        )
        return row

    def command_words(self) -> tuple[str, ...]:
        """The arguments of `qtui formats` that give these rows."""
        if self.source is not None and self.code is not None:
            words = [f"{self.source.name}:{self.code:#x}"]
        else:
            words = [_written(self.value)]
        if self.rounding is not Rounding.NEAREST_EVEN:
            words += ["--rounding", str(self.rounding)]
        if self.rounding is Rounding.STOCHASTIC:
            words += ["--random-bits", f"0x{self.random_bits:0{RANDOM_BIT_COUNT // 4}x}"]
        if self.saturate is not None:
            words.append("--saturate" if self.saturate else "--no-saturate")
        return tuple(words)


def _written(value: Exact) -> str:
    """The value as `qtui formats` reads it, exactly: a decimal if a short one is exact."""
    if isinstance(value, float):
        return repr(value)
    with suppress(OverflowError):  # beyond FP64
        if math.isfinite(near := float(value)) and Fraction(repr(near)) == value:
            return repr(near)
    return str(value)


def initial_state() -> FormatsState:
    """The state at the start: one tenth, which no format represents exactly."""
    return FormatsState(parse_value("0.1"), "one tenth")


def with_value(state: FormatsState, value: Exact, origin: str) -> FormatsState:
    return replace(state, value=value, origin=origin, source=None, code=None)


def with_text(state: FormatsState, text: str) -> FormatsState:
    """Sets the value from typed text: a number, or the hex or binary code of the chosen format, or
    of the format before a colon. Raises UsageError for any other text."""
    typed = parse_input(text, state.chosen)
    if typed.format is None or typed.code is None:
        return with_value(state, typed.value, "typed")
    return with_code(state, typed.format, typed.code, f"bits typed for {typed.format.title}")


def with_code(state: FormatsState, fmt: Format, code: int, origin: str) -> FormatsState:
    """Sets the value to the number of a code of `fmt`, and chooses `fmt`."""
    value = decode(fmt, code).value
    return replace(state, value=value, origin=origin, chosen=fmt, source=fmt, code=code)


def with_bit_toggled(state: FormatsState, fmt: Format, bit: int) -> FormatsState:
    """Sets the value to its code in `fmt` with bit `bit` flipped (0 is the highest)."""
    # If the format has no code for the value (NaN in INT8), starts from all zeros.
    code = state.row(fmt).code or 0
    flipped = code ^ (1 << (fmt.bits - 1 - bit))
    return with_code(state, fmt, flipped, f"bits of {fmt.title}")


def stepped(state: FormatsState, up: bool) -> FormatsState | None:
    """Sets the value to the next number of the chosen format above or below; None without one."""
    row = state.row(state.chosen)
    if row.code is None or row.value is None:
        return None
    already_there = row.value > state.value if up else row.value < state.value
    step: Callable[[Format, int], int | None] = next_code_up if up else next_code_down
    code = row.code if already_there else step(state.chosen, row.code)
    if code is None:
        return None
    return with_code(state, state.chosen, code, f"next number of {state.chosen.title}")


def with_new_draw(state: FormatsState) -> FormatsState:
    """Draws new random bits for stochastic rounding."""
    return replace(state, random_bits=random.getrandbits(RANDOM_BIT_COUNT))


def landmarks(fmt: Format) -> list[tuple[str, Exact]]:
    """Special values of a format, each with its name."""
    values: list[tuple[str, Exact]] = [("largest number", fmt.max), ("lowest number", fmt.min)]
    if isinstance(fmt, FloatFormat):
        values.append(("smallest normal", fmt.min_normal))
        if fmt.min_subnormal is not None:
            values.append(("smallest subnormal", fmt.min_subnormal))
        values.append(("first number past one", 1 + fmt.epsilon))
        spacing = ulp(fmt, fmt.max_code)
        assert spacing is not None
        values.append(("one step past the largest", fmt.max + spacing))
    return [*values, ("infinity", float("inf")), ("NaN", float("nan"))]


def with_chosen(state: FormatsState, fmt: Format) -> FormatsState:
    return replace(state, chosen=fmt)


def with_pin(state: FormatsState) -> FormatsState:
    """Pins the chosen format, or unpins it where it is the pinned one."""
    return replace(state, pinned=None if state.pinned is state.chosen else state.chosen)


def with_rounding(state: FormatsState, rounding: Rounding) -> FormatsState:
    return replace(state, rounding=rounding)


def value_text(value: Exact) -> str:
    """The text of the value in the field; typed again it gives the same value."""
    text = format_exact(value, 40)
    if "…" not in text:
        return text
    assert isinstance(value, Fraction)
    return f"{value.numerator}/{value.denominator}"
