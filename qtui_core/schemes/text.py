"""The text of a scheme: a table of its options, and the parser."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.schemes.formats import (
    ALL_SCALE_RULES,
    FORMAT_HELP,
    NESTED_BLOCK,
    SCALE_RULES,
    SCHEME_FORMATS,
    Family,
)
from qtui_core.schemes.granularity import GRANULARITY_HELP, parse_granularity

if TYPE_CHECKING:
    from qtui_core.schemes.scheme import Scheme


def _or(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


OPTION_HELP = (
    f"sym or asym, asym:zpfloat and {_or(SCALE_RULES[Family.INTEGER])} with the integers; "
    f"{_or(SCALE_RULES[Family.MICROSCALING])} with the mx formats; dq or dq128 with nf4 and fp4; "
    "stochastic or stochastic7; outliers6.0 with the integers"
)
_NUMBERED = re.compile(r"(dq|stochastic)([0-9]{0,10})")
_OUTLIERS = re.compile(r"outliers([0-9]*\.?[0-9]*(?:e[-+]?[0-9]+)?)")
#: What `qtui formats` does to a value and no scheme does to a tensor, with what to do instead.
FOR_VALUES = {
    "nosat": (
        "they clip to the largest number and count what they clipped; what becomes of one value "
        "without is shown by qtui formats --no-saturate"
    ),
    "truncate": (
        "nearest has a quarter of its error, and stochastic no bias; what becomes of one value is "
        "shown by qtui formats --rounding toward-zero"
    ),
}
#: Takes a part and the whole text; returns the fields of `Scheme` that the part sets.
Read = Callable[[str, str], dict[str, Any] | None]


@dataclass(frozen=True)
class SchemeOption:
    """An option in the text of a scheme.

    Attributes:
        kind: its name in errors; a scheme has at most one option of each kind.
        read: takes a part and the whole text; returns the fields of `Scheme` that the part sets, or
            None if the part is another option. Raises UsageError for an incomplete part.
        written: takes a scheme; returns the part, "" for the default.
    """

    kind: str
    read: Read
    written: Callable[[Scheme], str]


def _words(words: Mapping[str, dict[str, Any]]) -> Read:
    """A reader for parts that are one of these words."""
    return lambda part, text: words.get(part)


def _double_quantization(part: str, text: str) -> dict[str, Any] | None:
    found = _NUMBERED.fullmatch(part)
    if found is None or found[1] != "dq":
        return None
    return {"double_quantization": True, **({"nested_block": int(found[2])} if found[2] else {})}


def _rounding(part: str, text: str) -> dict[str, Any] | None:
    found = _NUMBERED.fullmatch(part)
    if found is not None and found[1] == "stochastic":
        return {"rounding": "stochastic", "seed": int(found[2] or 0)}
    return None


def _outliers(part: str, text: str) -> dict[str, Any] | None:
    if not part.startswith("outliers"):
        return None
    number = _OUTLIERS.fullmatch(part)
    if number is None or not any(c.isdigit() for c in number[1]):
        raise UsageError(
            f"{part!r} in the scheme {text!r} needs a threshold right after the word, for "
            f"example outliers6.0."
        )
    return {"outlier_threshold": float(number[1])}


#: The options, in the order in which they are written.
SCHEME_OPTIONS: Final = (
    SchemeOption(
        "symmetry",
        _words({"sym": {"symmetric": True}, "asym": {"symmetric": False}}),
        lambda scheme: "" if scheme.symmetric else "asym",
    ),
    SchemeOption(
        "zero point",
        _words({"zpfloat": {"float_zero_point": True}}),
        lambda scheme: "zpfloat" if scheme.float_zero_point else "",
    ),
    SchemeOption(
        "scale rule",
        _words({rule: {"scale_rule": rule} for rule in ALL_SCALE_RULES}),
        lambda scheme: scheme.scale_rule if scheme.scale_rule != scheme.scale_rules[0] else "",
    ),
    SchemeOption(
        "double quantization",
        _double_quantization,
        lambda scheme: (
            f"dq{scheme.nested_block if scheme.nested_block != NESTED_BLOCK else ''}"
            if scheme.double_quantization
            else ""
        ),
    ),
    SchemeOption(
        "rounding",
        _rounding,
        lambda scheme: (
            "" if scheme.rounding == "nearest" else f"{scheme.rounding}{scheme.seed or ''}"
        ),
    ),
    SchemeOption(
        "outlier threshold",
        _outliers,
        lambda scheme: (
            "" if scheme.outlier_threshold is None else f"outliers{scheme.outlier_threshold!r}"
        ),
    ),
)


def scheme_arguments(text: str) -> dict[str, Any]:
    """The arguments of `Scheme` for a text.

    Raises UsageError, which names what is allowed, for a part that is invalid or occurs twice.
    """
    name, *parts = [part.strip().lower() for part in text.split(":")]
    if name not in SCHEME_FORMATS:
        raise UsageError(
            f"Unknown format {name!r} in the scheme {text!r}; formats are {FORMAT_HELP}."
        )
    arguments: dict[str, Any] = {"format": name}
    chosen: dict[str, str] = {}
    for part in parts:
        kind, found = _read_part(part, text)
        if kind in chosen:
            raise UsageError(
                f"The scheme {text!r} says both {chosen[kind]} and {part}: give one {kind} only."
            )
        chosen[kind] = part
        arguments |= found
    rules = SCALE_RULES[Family.INTEGER]
    if chosen.get("symmetry") == "asym" and chosen.get("scale rule") in rules:
        raise UsageError(
            f"The scheme {text!r} is impossible: an asymmetric scale comes from min and "
            f"max, so leave out asym or {chosen['scale rule']}."
        )
    if "zero point" in chosen:
        if chosen.get("symmetry") == "sym":
            raise UsageError(f"The scheme {text!r} is impossible: sym has no zero point.")
        arguments["symmetric"] = False
    return arguments


def _read_part(part: str, text: str) -> tuple[str, dict[str, Any]]:
    """(the kind of a part, the fields of `Scheme` that it sets)."""
    granularity = parse_granularity(part)
    if granularity is not None:
        return "granularity", {"granularity": granularity}
    for option in SCHEME_OPTIONS:
        found = option.read(part, text)
        if found is not None:
            return option.kind, found
    if part in FOR_VALUES:
        raise UsageError(f"Schemes have no {part}: {FOR_VALUES[part]}.")
    raise UsageError(
        f"{part!r} in the scheme {text!r} is neither a granularity "
        f"({GRANULARITY_HELP}) nor an option ({OPTION_HELP})."
    )
