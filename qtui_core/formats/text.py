"""Reads the numbers and bit patterns that a person types, without loss."""

from __future__ import annotations

import re
from fractions import Fraction

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.formats.catalog import get_format
from qtui_core.formats.scalar import Exact, decode
from qtui_core.formats.spec import Format

#: A typed exponent beyond this is a mistake: FP64 ends near 1e308 and 1e-324, and the exact
#: integer 1e999999999 would not fit in memory.
MAX_DECIMAL_EXPONENT = 2000
#: Most characters: any exact decimal of FP64 (767 significant digits) fits, a pasted file does not.
MAX_TEXT_LENGTH = 2000

_DECIMAL = re.compile(r"([+-]?)(\d+(?:\.\d*)?|\.\d+)(?:e([+-]?\d+))?", re.ASCII)
_HEX_FLOAT = re.compile(r"([+-]?)0x([0-9a-f]+(?:\.[0-9a-f]*)?|\.[0-9a-f]+)p([+-]?\d+)", re.ASCII)
_SPECIAL = re.compile(r"([+-]?)(inf|infinity|nan)")
_PATTERN = re.compile(r"0x[0-9a-f_ ]*|0b[01_ |]*")
_HELP = "Type a number such as 0.1, 1e-3, -1/3, 0x1.8p3, inf or nan"


@dataclass(frozen=True)
class Typed:
    """What was typed. `format` and `code` are set if it was a bit pattern."""

    value: Exact
    format: Format | None = None
    code: int | None = None


def parse_input(text: str, fmt: Format | None = None) -> Typed:
    """Reads a number, or the bits of a code: `0x3d` and `0b0 0011 101` are codes of `fmt`,
    `e4m3:0x3d` is a code of E4M3. Raises UsageError if the text is neither."""
    name, colon, pattern = text.partition(":")
    if colon:
        fmt = get_format(name)
        text = pattern
    if not _PATTERN.fullmatch(text.strip().lower()):
        if colon:
            raise UsageError(
                f"{text.strip()!r} is no bit pattern. After a format comes hex or binary, as in "
                f"{name.strip()}:0x3d."
            )
        return Typed(parse_value(text))
    if fmt is None:
        raise UsageError(
            f"{text.strip()} is a bit pattern and needs a format: type for example "
            f"e4m3:{text.strip()}."
        )
    code = parse_code(fmt, text)
    return Typed(decode(fmt, code).value, fmt, code)


def parse_value(text: str) -> Exact:
    """The number that was typed, exactly: "0.1" is one tenth, not the FP64 nearest to it.

    Reads decimals, fractions of decimals, C hex floats ("0x1.8p3"), inf, nan and -0, in upper or
    lower case, with underscores between digits and with a typographic minus. Raises UsageError
    for anything else.
    """
    typed = text.strip()
    if len(typed) > MAX_TEXT_LENGTH:
        raise UsageError(
            f"The number has {len(typed)} characters; at most {MAX_TEXT_LENGTH} are read."
        )
    plain = re.sub(r"(?<=[0-9a-f])_(?=[0-9a-f])", "", typed.lower().replace("−", "-"))
    if special := _SPECIAL.fullmatch(plain):
        return float(special[1] + special[2])
    if _PATTERN.fullmatch(plain):
        raise UsageError(f"{typed!r} is a bit pattern, not a number. {_HELP}.")
    above, slash, below = plain.partition("/")
    numerator = _parse_real(above.strip(), typed)
    if slash:
        denominator = _parse_real(below.strip(), typed)
        if denominator == 0:
            raise UsageError(f"{typed!r} divides by zero. Type inf or nan if that is meant.")
        return Fraction(numerator) / Fraction(denominator)
    return numerator


def _parse_real(text: str, typed: str) -> Exact:
    if match := _DECIMAL.fullmatch(text):
        sign, digits, exponent = match[1], match[2], _exponent(match[3], typed)
        value = Fraction(digits) * Fraction(10) ** exponent
    elif match := _HEX_FLOAT.fullmatch(text):
        sign, digits, exponent = match[1], match[2], _exponent(match[3], typed)
        whole, _, places = digits.partition(".")
        value = int(whole + places, 16) * Fraction(2) ** (exponent - 4 * len(places))
    else:
        raise UsageError(f"{typed!r} is not a number. {_HELP}.")
    if sign == "-":
        return -value if value else -0.0
    return value


def _exponent(text: str | None, typed: str) -> int:
    # The length first: int() of a very long digit string is itself slow, and refused by Python.
    if len((text or "0").lstrip("+-0")) > 5 or abs(int(text or "0")) > MAX_DECIMAL_EXPONENT:
        raise UsageError(
            f"{typed!r} is far outside every format; exponents go from "
            f"-{MAX_DECIMAL_EXPONENT} to {MAX_DECIMAL_EXPONENT}."
        )
    return int(text or "0")


def parse_code(fmt: Format, text: str) -> int:
    """The code of `fmt` that a pattern of bits spells, "0x3d" or "0b0011_1101".

    Spaces, underscores and bars between digits are ignored, missing high digits are zeros. A
    pattern with more bits than the code (TF32: more than 19) is read as the stored word. Raises
    UsageError if the text is no pattern or has too many bits.
    """
    pattern = re.sub(r"[_ |]", "", text.strip().lower())
    base = {"0x": 16, "0b": 2}.get(pattern[:2])
    digits = pattern[2:]
    if base is None or not re.fullmatch(r"[0-9a-f]+" if base == 16 else r"[01]+", digits):
        raise UsageError(
            f"{text.strip()!r} is not a bit pattern. Type hex as 0x3d or bits as 0b00111101."
        )
    word = int(digits, base) if len(digits) <= MAX_TEXT_LENGTH else -1
    is_word = fmt.storage_bits > fmt.bits and (base == 16 or len(digits) > fmt.bits)
    width = fmt.storage_bits if is_word else fmt.bits
    if not 0 <= word < 1 << width:
        raise UsageError(f"{text.strip()[:80]} has more than the {width} bits of {fmt.title}.")
    if not is_word:
        return word
    padding = fmt.storage_bits - fmt.bits
    if word & ((1 << padding) - 1):
        raise UsageError(
            f"{text.strip()} sets some of the low {padding} bits of the word, which {fmt.title} "
            f"leaves zero. Give the upper {fmt.bits} bits."
        )
    return word >> padding
