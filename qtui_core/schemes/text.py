"""The text of a scheme: a table of its options, and the parser."""

from __future__ import annotations

import re
from collections.abc import Callable
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


@dataclass(frozen=True)
class SchemeOption:
    """An option in the text of a scheme.

    Attributes:
        kind: its name in errors; a scheme has at most one option of each kind.
        pattern: what a part is that is this option.
        fields: the fields of `Scheme` that the part sets.
        written: takes a scheme; returns the part, "" for the default.
    """

    kind: str
    pattern: str
    fields: Callable[[re.Match[str]], dict[str, Any]]
    written: Callable[[Scheme], str]


#: The options, in the order in which they are written.
SCHEME_OPTIONS: Final = (
    SchemeOption(
        "symmetry",
        "a?sym",
        lambda part: {"symmetric": part[0] == "sym"},
        lambda scheme: "" if scheme.symmetric else "asym",
    ),
    SchemeOption(
        "zero point",
        "zpfloat",
        lambda part: {"float_zero_point": True},
        lambda scheme: "zpfloat" if scheme.float_zero_point else "",
    ),
    SchemeOption(
        "scale rule",
        "|".join(ALL_SCALE_RULES),
        lambda part: {"scale_rule": part[0]},
        lambda scheme: scheme.scale_rule if scheme.scale_rule != scheme.scale_rules[0] else "",
    ),
    SchemeOption(
        "double quantization",
        "dq([0-9]{0,10})",
        lambda part: {"double_quantization": True, "nested_block": int(part[1] or NESTED_BLOCK)},
        lambda scheme: (
            f"dq{scheme.nested_block if scheme.nested_block != NESTED_BLOCK else ''}"
            if scheme.double_quantization
            else ""
        ),
    ),
    SchemeOption(
        "rounding",
        "stochastic([0-9]{0,10})",
        lambda part: {"rounding": "stochastic", "seed": int(part[1] or 0)},
        lambda scheme: (
            "" if scheme.rounding == "nearest" else f"{scheme.rounding}{scheme.seed or ''}"
        ),
    ),
    SchemeOption(
        "outlier threshold",
        r"outliers((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?)",
        lambda part: {"outlier_threshold": float(part[1])},
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
        kind, fields = _read_part(part, text)
        if kind in chosen:
            raise UsageError(
                f"The scheme {text!r} says both {chosen[kind]} and {part}: give one {kind} only."
            )
        chosen[kind] = part
        arguments |= fields
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
        if match := re.fullmatch(option.pattern, part):
            return option.kind, option.fields(match)
    raise UsageError(
        f"{part!r} in the scheme {text!r} is neither a granularity "
        f"({GRANULARITY_HELP}) nor an option ({OPTION_HELP})."
    )
