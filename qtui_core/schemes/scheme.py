"""A quantization scheme as data: a format, a granularity, options for scales and rounding; and the
rules for which combinations are possible.

The text of a scheme is `FORMAT[:GRANULARITY][:OPTION...]` on the command line, in JSON and on the
screen: `int4:group64:asym`, `e4m3:row`, `nf4:block64:dq`, `mxfp4:ceil`, `bf16`. `text.py` parses
it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
from qtui_core.schemes.granularity import Granularity, PerBlock, PerColumn, PerModel
from qtui_core.schemes.text import SCHEME_OPTIONS, scheme_arguments

#: The most bits of a format whose codes are shown one by one.
MAX_COUNTED_BITS = 8
#: The most schemes whose codes are shown side by side.
MOST_SIDE_BY_SIDE = 8
_INTEGERS = "the integers, int2 to int8"


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
        _check(self)

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


def _check(scheme: Scheme) -> None:
    """Raises UsageError for an impossible combination."""
    _check_granularity(scheme)
    _check_scale(scheme)
    _check_nesting(scheme)
    _check_rounding(scheme)
    _check_outliers(scheme)


def _check_granularity(scheme: Scheme) -> None:
    refusal = refused_granularity(scheme.format, scheme.granularity)
    if refusal is not None:
        raise UsageError(refusal)


def _check_scale(scheme: Scheme) -> None:
    name = scheme.format
    if scheme.scale_rule not in scheme.scale_rules:
        if scheme.scale_rule not in (*ALL_SCALE_RULES, "absmax"):
            raise UsageError(
                f"Unknown scale rule {scheme.scale_rule!r}; rules are {', '.join(ALL_SCALE_RULES)}."
            )
        whose = _INTEGERS if scheme.scale_rule in SCALE_RULES[Family.INTEGER] else "the mx formats"
        raise UsageError(
            f"{name} cannot use the scale rule {scheme.scale_rule}: it is for {whose}."
        )
    if not scheme.symmetric:
        if scheme.family is not Family.INTEGER:
            raise UsageError(f"{name} has no zero point: asym is for {_INTEGERS}.")
        if scheme.scale_rule != "absmax":
            raise UsageError(
                f"asym and {scheme.scale_rule} exclude each other: an asymmetric scale comes "
                f"from min and max, so name one of the two."
            )
    elif scheme.float_zero_point:
        raise UsageError("zpfloat is a kind of zero point, and sym has none: write asym:zpfloat.")


def _check_nesting(scheme: Scheme) -> None:
    if not scheme.double_quantization:
        if scheme.nested_block != NESTED_BLOCK:
            raise UsageError("A nested block belongs to double quantization: write dq with it.")
        return
    if scheme.family is not Family.CODEBOOK:
        raise UsageError(f"dq is for nf4 and fp4; {scheme.format} has no absmax to nest.")
    if not 1 <= scheme.nested_block <= MAX_DOUBLE_QUANTIZED_BLOCK:
        raise UsageError(
            f"dq{scheme.nested_block} is not possible: a constant is shared by 1 to "
            f"{MAX_DOUBLE_QUANTIZED_BLOCK} scales."
        )
    if isinstance(scheme.granularity, PerBlock) and (
        scheme.granularity.size > MAX_DOUBLE_QUANTIZED_BLOCK
    ):
        raise UsageError(
            f"dq takes blocks of at most {MAX_DOUBLE_QUANTIZED_BLOCK}, as in "
            f"bitsandbytes; {scheme.granularity} is larger."
        )


def _check_rounding(scheme: Scheme) -> None:
    name = scheme.format
    if scheme.rounding not in ROUNDINGS:
        raise UsageError(
            f"Unknown rounding {scheme.rounding!r}; roundings are {', '.join(ROUNDINGS)}."
        )
    if scheme.rounding != "nearest":
        if scheme.family in (Family.CODEBOOK, Family.TERNARY):
            raise UsageError(f"{name} rounds to the nearest level and has no {scheme.rounding}.")
        if scheme.scale_rule == "signed":
            raise UsageError(
                f"signed is GGUF's rule with its own rounding; {scheme.rounding} goes with "
                f"absmax, full or asym."
            )
    if scheme.seed and scheme.rounding != "stochastic":
        raise UsageError("A seed belongs to stochastic rounding: write stochastic with it.")
    if not 0 <= scheme.seed <= MAX_SEED:
        raise UsageError(f"A seed is a whole number from 0 to {MAX_SEED:,}; got {scheme.seed}.")


def _check_outliers(scheme: Scheme) -> None:
    threshold = scheme.outlier_threshold
    if threshold is None:
        return
    if scheme.family is not Family.INTEGER:
        raise UsageError(f"{scheme.format} has no outlier columns: outliers is for {_INTEGERS}.")
    if isinstance(scheme.granularity, PerModel | PerColumn):
        raise UsageError(
            f"Outlier columns are taken out of scales that they share with others, and per "
            f"{scheme.granularity} that is not so: write {scheme.format}:row:outliers{threshold:g}."
        )
    if not (math.isfinite(threshold) and threshold > 0):
        raise UsageError(f"An outlier threshold is a magnitude above 0; got {threshold:g}.")


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
    match fmt.family:
        case Family.CAST:
            if granularity is not None:
                return (
                    f"{name} is a cast without a scale, so it takes no granularity: write just "
                    f"{name}."
                )
        case Family.CODEBOOK:
            if not isinstance(granularity, PerBlock):
                return (
                    f"{name} cannot be scaled per {granularity}: bitsandbytes defines it over "
                    f"blocks of the flattened tensor, so write {name}:block64 or another size."
                )
        case Family.MICROSCALING | Family.TWO_LEVEL:
            if granularity != fmt.default:
                return (
                    f"{name} is defined with {fmt.default} and nothing else: write just {name}, "
                    f"or {_free_element(name)}:{granularity}, which has scales in 32 bits."
                )
        case Family.TERNARY:
            if isinstance(granularity, PerModel):
                return (
                    f"{name} has no scale per model: its scale is a mean magnitude, and of a "
                    f"model only the extremes are known; write {name}:tensor."
                )
    return None


def _free_element(name: str) -> str:
    """The format with the same elements as a microscaling format, but with any granularity."""
    element = SCHEME_FORMATS[name].element
    return element if element is not None and element != name else "int8"
