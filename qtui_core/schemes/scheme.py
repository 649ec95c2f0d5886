"""A quantization scheme as data: a format, a granularity, options for scales and rounding; and the
rules for which combinations are possible.

The text of a scheme is `FORMAT[:GRANULARITY][:OPTION...]` on the command line, in JSON and on the
screen: `int4:group64:asym`, `e4m3:row`, `nf4:block64:dq`, `mxfp4:ceil`, `bf16`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.schemes.formats import (
    ALL_SCALE_RULES,
    FIXED_GRANULARITY,
    FORMAT_HELP,
    MAX_DOUBLE_QUANTIZED_BLOCK,
    MAX_SEED,
    NESTED_BLOCK,
    ROUNDINGS,
    SCALE_RULES,
    SCHEME_FORMATS,
    Family,
)
from qtui_core.schemes.granularity import (
    GRANULARITY_HELP,
    Granularity,
    PerBlock,
    PerColumn,
    PerModel,
    parse_granularity,
    size_of,
)

#: The most bits of a format whose codes are shown one by one.
MAX_COUNTED_BITS = 8
#: The most schemes whose codes are shown side by side.
MOST_SIDE_BY_SIDE = 8
_INTEGERS = "the integers, int2 to int8"


def _or(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


OPTION_HELP = (
    f"sym or asym, asym:zpfloat and {_or(SCALE_RULES[Family.INTEGER])} with the integers; "
    f"{_or(SCALE_RULES[Family.MICROSCALING])} with the mx formats; dq or dq128 with nf4 and fp4; "
    "stochastic or stochastic7; outliers6.0 with the integers"
)


@dataclass(frozen=True)
class Scheme:
    """One way to quantize a tensor. `str(scheme)` is its shortest complete text, and
    `Scheme.parse(str(scheme)) == scheme`.

    Raises UsageError for an impossible combination.

    Attributes:
        format: a key of SCHEME_FORMATS.
        granularity: which elements share a scale; None for casts, which have no scale.
        symmetric: False for integers with a zero point and a scale from min and max.
        float_zero_point: whether the zero point is stored as a number in the tensor's unit, so that
            the range need not include zero (torchao's tinygemm, HQQ).
        scale_rule: one of the SCALE_RULES of the family, or "" for its default.
        double_quantization: whether the scales are themselves stored in 8 bits.
        nested_block: how many scales share a constant under double quantization.
        rounding: one of ROUNDINGS: how elements are rounded to levels.
        seed: of stochastic rounding.
        outlier_threshold: columns with an element of at least this magnitude (in the tensor's unit)
            are kept in 16 bits; None keeps no columns. LLM.int8() finds these columns in
            activations, and also keeps the same columns of the weight `[out, in]`.
    """

    format: str
    granularity: Granularity | None = None
    symmetric: bool = True
    scale_rule: str = ""
    double_quantization: bool = False
    nested_block: int = NESTED_BLOCK
    float_zero_point: bool = False
    rounding: str = "nearest"
    seed: int = 0
    outlier_threshold: float | None = None

    def __post_init__(self) -> None:
        if self.format not in SCHEME_FORMATS:
            raise UsageError(f"Unknown format {self.format!r}; formats are {FORMAT_HELP}.")
        if self.granularity is None:
            object.__setattr__(self, "granularity", SCHEME_FORMATS[self.format].default)
        if self.scale_rule == "":
            object.__setattr__(self, "scale_rule", self.scale_rules[0])
        for refusal in _refusals(self):
            raise UsageError(refusal)

    @property
    def family(self) -> Family:
        return SCHEME_FORMATS[self.format].family

    @property
    def element(self) -> str | None:
        """The format of `qtui_core.formats` that elements are rounded to, if there is one."""
        return SCHEME_FORMATS[self.format].element

    @property
    def bits(self) -> int:
        """Bits of storage of one code, without scales."""
        return SCHEME_FORMATS[self.format].bits

    @property
    def scale_rules(self) -> tuple[str, ...]:
        """The rules this format may use, its default first."""
        return SCALE_RULES.get(self.family, ("absmax",))

    def __str__(self) -> str:
        parts = [self.format]
        fixed = self.family in FIXED_GRANULARITY
        if self.granularity is not None and not fixed:
            parts.append(str(self.granularity))
        parts += [option.written(self) for option in SCHEME_OPTIONS]
        return ":".join(filter(None, parts))

    @classmethod
    def parse(cls, text: str) -> Scheme:
        """The scheme that `text` describes; case and spaces around the parts do not matter.

        Raises UsageError, which names what is allowed, if the text is invalid or the scheme
        impossible.
        """
        return cls(**scheme_arguments(text))


def _refusals(scheme: Scheme) -> Iterator[str]:
    """Sentences: why a combination is impossible."""
    name, rule, family = scheme.format, scheme.scale_rule, scheme.family
    if refusal := refused_granularity(name, scheme.granularity):
        yield refusal
    # The scale and the zero point.
    if rule not in (*ALL_SCALE_RULES, "absmax"):
        yield f"Unknown scale rule {rule!r}; rules are {', '.join(ALL_SCALE_RULES)}."
    elif rule not in scheme.scale_rules:
        whose = _INTEGERS if rule in SCALE_RULES[Family.INTEGER] else "the mx formats"
        yield f"{name} cannot use the scale rule {rule}: it is for {whose}."
    if not scheme.symmetric and family is not Family.INTEGER:
        yield f"{name} has no zero point: asym is for {_INTEGERS}."
    elif not scheme.symmetric and rule != "absmax":
        yield (
            f"asym and {rule} exclude each other: an asymmetric scale comes from min and max, so "
            f"name one of the two."
        )
    if scheme.symmetric and scheme.float_zero_point:
        yield "zpfloat is a kind of zero point, and sym has none: write asym:zpfloat."
    # Double quantization.
    nested, most = scheme.nested_block, MAX_DOUBLE_QUANTIZED_BLOCK
    if not scheme.double_quantization and nested != NESTED_BLOCK:
        yield "A nested block belongs to double quantization: write dq with it."
    elif scheme.double_quantization and family is not Family.CODEBOOK:
        yield f"dq is for nf4 and fp4; {name} has no absmax to nest."
    elif not 1 <= nested <= most:
        yield f"dq{nested} is not possible: a constant is shared by 1 to {most} scales."
    elif scheme.double_quantization and (size_of(scheme.granularity) or 0) > most:
        yield (
            f"dq takes blocks of at most {most}, as in bitsandbytes; {scheme.granularity} is "
            f"larger."
        )
    # Rounding.
    if scheme.rounding not in ROUNDINGS:
        yield f"Unknown rounding {scheme.rounding!r}; roundings are {', '.join(ROUNDINGS)}."
    elif scheme.rounding != "nearest" and family in (Family.CODEBOOK, Family.TERNARY):
        yield f"{name} rounds to the nearest level and has no {scheme.rounding}."
    elif scheme.rounding != "nearest" and rule == "signed":
        yield (
            f"signed is GGUF's rule with its own rounding; {scheme.rounding} goes with absmax, "
            f"full or asym."
        )
    if scheme.seed and scheme.rounding != "stochastic":
        yield "A seed belongs to stochastic rounding: write stochastic with it."
    if not 0 <= scheme.seed <= MAX_SEED:
        yield f"A seed is a whole number from 0 to {MAX_SEED:,}; got {scheme.seed}."
    # Columns in 16 bits.
    threshold = scheme.outlier_threshold
    if threshold is None:
        return
    if family is not Family.INTEGER:
        yield f"{name} has no outlier columns: outliers is for {_INTEGERS}."
    if isinstance(scheme.granularity, PerModel | PerColumn):
        yield (
            f"Outlier columns are taken out of scales that they share with others, and per "
            f"{scheme.granularity} that is not so: write {name}:row:outliers{threshold:g}."
        )
    if not (math.isfinite(threshold) and threshold > 0):
        yield f"An outlier threshold is a magnitude above 0; got {threshold:g}."


def check_countable(scheme: Scheme) -> None:
    """Raises UsageError for a format with too many codes to be counted one by one."""
    bits = scheme.bits
    if bits > MAX_COUNTED_BITS:
        raise UsageError(
            f"{scheme.format} has {2**bits:,} codes, too many to show one by one: formats of up "
            f"to {MAX_COUNTED_BITS} bits can be shown, for example nf4, int4 or e2m1."
        )


def check_side_by_side(schemes: Sequence[Scheme]) -> None:
    """Raises UsageError for too many schemes, or for a scheme with too many codes."""
    if len(schemes) > MOST_SIDE_BY_SIDE:
        raise UsageError(
            f"{len(schemes)} schemes are too many to be read side by side: {MOST_SIDE_BY_SIDE} "
            f"are the most."
        )
    for scheme in schemes:
        check_countable(scheme)


def refused_granularity(name: str, granularity: Granularity | None) -> str | None:
    """A sentence: why the format `name` cannot have this granularity; None if it can."""
    fmt = SCHEME_FORMATS[name]
    if fmt.family is Family.CAST and granularity is not None:
        return f"{name} is a cast without a scale, so it takes no granularity: write just {name}."
    if fmt.family is Family.CODEBOOK and not isinstance(granularity, PerBlock):
        return (
            f"{name} cannot be scaled per {granularity}: bitsandbytes defines it over blocks of "
            f"the flattened tensor, so write {name}:block64 or another size."
        )
    if fmt.family in FIXED_GRANULARITY and granularity != fmt.default:
        # The format with the same elements and any granularity.
        free = fmt.element if fmt.element not in (None, name) else "int8"
        return (
            f"{name} is defined with {fmt.default} and nothing else: write just {name}, or "
            f"{free}:{granularity}, which has scales in 32 bits."
        )
    if fmt.family is Family.TERNARY and isinstance(granularity, PerModel):
        return (
            f"{name} has no scale per model: its scale is a mean magnitude, and of a model only "
            f"the extremes are known; write {name}:tensor."
        )
    return None


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
    if "zero point" in chosen:
        arguments.setdefault("symmetric", False)
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
