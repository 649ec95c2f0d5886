"""Reads the text of a scheme, part by part."""

from __future__ import annotations

import re
from typing import Any

from qtui_core.errors import UsageError
from qtui_core.schemes.formats import ALL_SCALE_RULES, FORMAT_HELP, SCHEME_FORMATS
from qtui_core.schemes.granularity import GRANULARITY_HELP, parse_granularity

OPTION_HELP = (
    "sym or asym, asym:zpfloat and absmax, full or signed with the integers; floor, ceil, even or "
    "rceil with the mx formats; dq or dq128 with nf4 and fp4; truncate, stochastic or stochastic7; "
    "nosat; outliers6.0 with the integers"
)
_NUMBERED = re.compile(r"(dq|stochastic)([0-9]{0,10})")
_OUTLIERS = re.compile(r"outliers([0-9]*\.?[0-9]*(?:e[-+]?[0-9]+)?)")


def scheme_arguments(text: str) -> dict[str, Any]:
    """What `Scheme` is to be made with for a text.

    Raises UsageError, naming what is allowed, for a part that is none or comes twice.
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
    if chosen.get("symmetry") == "asym" and chosen.get("scale rule") in (
        "absmax",
        "full",
        "signed",
    ):
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
    """What kind of part it is, and the arguments it stands for."""
    granularity = parse_granularity(part)
    if granularity is not None:
        return "granularity", {"granularity": granularity}
    if part in ("sym", "asym"):
        return "symmetry", {"symmetric": part == "sym"}
    if part == "zpfloat":
        return "zero point", {"float_zero_point": True}
    if part in ALL_SCALE_RULES:
        return "scale rule", {"scale_rule": part}
    if part == "truncate":
        return "rounding", {"rounding": part}
    if part == "nosat":
        return "saturation", {"saturate": False}
    if (numbered := _NUMBERED.fullmatch(part)) is not None:
        kind, digits = numbered.groups()
        if kind == "dq":
            nested = {"nested_block": int(digits)} if digits else {}
            return "double quantization", {"double_quantization": True, **nested}
        return "rounding", {"rounding": kind, "seed": int(digits or 0)}
    if part.startswith("outliers"):
        number = _OUTLIERS.fullmatch(part)
        if number is None or not any(c.isdigit() for c in number.group(1)):
            raise UsageError(
                f"{part!r} in the scheme {text!r} needs a threshold right after the word, for "
                f"example outliers6.0."
            )
        return "outlier threshold", {"outlier_threshold": float(number.group(1))}
    raise UsageError(
        f"{part!r} in the scheme {text!r} is neither a granularity "
        f"({GRANULARITY_HELP}) nor an option ({OPTION_HELP})."
    )
