"""What is done to a tensor, as data: a format, who shares a scale, and how it is chosen.

The text of a scheme is `FORMAT[:GRANULARITY][:OPTION...]`, the same on the command line, in
JSON and on the screen: `int4:group64:asym`, `e4m3:row`, `nf4:block64:dq`, `mxfp4:ceil`, `bf16`.
`scheme_text` reads it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from qtui_core.errors import UsageError
from qtui_core.quant.granularity import (
    Granularity,
    PerBlock,
    PerColumn,
    PerGroup,
    PerModel,
    PerRow,
    PerTensor,
)

#: Elements of `absmax` that share one constant under double quantization unless the scheme
#: says otherwise, and the largest block it is defined for; both are those of bitsandbytes.
NESTED_BLOCK = 256
MAX_DOUBLE_QUANTIZED_BLOCK = 4096
#: Largest seed of stochastic rounding: one 32-bit word.
MAX_SEED = 2**32 - 1


class Family(Enum):
    """What kind of levels a format has, which decides what else a scheme may say."""

    INTEGER = "integer"
    FLOAT = "scaled float"
    CODEBOOK = "codebook"
    CAST = "cast"
    MICROSCALING = "microscaling"
    """Elements of a small format under a scale that is a power of two (OCP MX)."""
    TWO_LEVEL = "two-level"
    """Elements under a small-float scale, itself under one scale of the tensor (NVFP4)."""
    TERNARY = "ternary"


@dataclass(frozen=True)
class SchemeFormat:
    """A format a scheme can name.

    Attributes:
        bits: what one code occupies in storage (32 for TF32, which uses 19 of them; 2 for
            ternary, which needs 1.58).
        default: the granularity when the text gives none.
        element: the format of the catalogue that elements are rounded to, where there is one.
    """

    name: str
    family: Family
    bits: int
    default: Granularity | None
    element: str | None = None

    @property
    def overflows(self) -> bool:
        """Whether there is an infinity or NaN for what lies beyond the largest number."""
        return self.family is Family.CAST or (self.family is Family.FLOAT and self.bits == 8)


_FORMATS = (
    *(SchemeFormat(f"int{b}", Family.INTEGER, b, PerGroup(64)) for b in (2, 3, 4)),
    *(SchemeFormat(f"int{b}", Family.INTEGER, b, PerRow()) for b in (5, 6, 7, 8)),
    *(SchemeFormat(name, Family.FLOAT, 8, PerTensor(), name) for name in ("e4m3", "e5m2")),
    *(SchemeFormat(name, Family.FLOAT, 6, PerGroup(64), name) for name in ("e3m2", "e2m3")),
    *(SchemeFormat(name, Family.FLOAT, 4, PerGroup(64), name) for name in ("e2m1", "e3m0")),
    SchemeFormat("bf16", Family.CAST, 16, None, "bf16"),
    SchemeFormat("fp16", Family.CAST, 16, None, "fp16"),
    SchemeFormat("tf32", Family.CAST, 32, None, "tf32"),
    SchemeFormat("nf4", Family.CODEBOOK, 4, PerBlock(64)),
    SchemeFormat("fp4", Family.CODEBOOK, 4, PerBlock(64)),
    SchemeFormat("mxfp4", Family.MICROSCALING, 4, PerGroup(32), "e2m1"),
    SchemeFormat("mxfp6-e3m2", Family.MICROSCALING, 6, PerGroup(32), "e3m2"),
    SchemeFormat("mxfp6-e2m3", Family.MICROSCALING, 6, PerGroup(32), "e2m3"),
    SchemeFormat("mxfp8-e4m3", Family.MICROSCALING, 8, PerGroup(32), "e4m3"),
    SchemeFormat("mxfp8-e5m2", Family.MICROSCALING, 8, PerGroup(32), "e5m2"),
    SchemeFormat("mxint8", Family.MICROSCALING, 8, PerGroup(32), "mxint8"),
    SchemeFormat("nvfp4", Family.TWO_LEVEL, 4, PerGroup(16), "e2m1"),
    SchemeFormat("ternary", Family.TERNARY, 2, PerTensor()),
)
SCHEME_FORMATS: dict[str, SchemeFormat] = {f.name: f for f in _FORMATS}

#: Scale rules of each family, its default first; families without an entry have "absmax".
#:
#: Symmetric integers. `absmax`: absmax / (2^(b-1) - 1), codes restricted to a symmetric
#: range. `full`: absmax / (2^b - 1) * 2, all codes (torchao, compressed-tensors). `signed`:
#: the element largest in magnitude, with its sign, over -2^(b-1), all codes (GGUF Q4_0).
#:
#: Microscaling, the power of two from absmax and the largest number M of the element format.
#: `floor`: 2^(floor(log2 absmax) - floor(log2 M)) (OCP MX 1.0). `ceil`: the first logarithm
#: rounded up. `even`: absmax first rounded to the mantissa bits of the element format.
#: `rceil`: the least power of two not below absmax / M.
SCALE_RULES: dict[Family, tuple[str, ...]] = {
    Family.INTEGER: ("absmax", "full", "signed"),
    Family.MICROSCALING: ("floor", "ceil", "even", "rceil"),
}
#: Families that are defined with the granularity of the format and no other.
FIXED_GRANULARITY = (Family.MICROSCALING, Family.TWO_LEVEL)
ALL_SCALE_RULES = tuple(rule for rules in SCALE_RULES.values() for rule in rules)
ROUNDINGS = ("nearest", "truncate", "stochastic")

FORMAT_HELP = (
    "int2 to int8, e4m3, e5m2, e3m2, e2m3, e2m1, e3m0, bf16, fp16, tf32, nf4, fp4, mxfp4, "
    "mxfp6-e3m2, mxfp6-e2m3, mxfp8-e4m3, mxfp8-e5m2, mxint8, nvfp4, ternary"
)
_INTEGERS = "the integers, int2 to int8"


@dataclass(frozen=True)
class Scheme:
    """One way to quantize a tensor. `str(scheme)` is its shortest complete text, and
    `Scheme.parse(str(scheme)) == scheme`.

    Raises UsageError for a combination that is not possible.

    Attributes:
        format: a key of SCHEME_FORMATS.
        granularity: who shares a scale; None for the casts, which have no scale.
        symmetric: False for integers with a scale from min and max and a zero point.
        float_zero_point: whether that zero point is kept as a number of the tensor's unit,
            so that the range need not hold zero (torchao's tinygemm, HQQ).
        scale_rule: one of the SCALE_RULES of the family, or "" for its default.
        double_quantization: whether the scales are themselves stored in 8 bits.
        nested_block: how many of them then share a constant.
        rounding: one of ROUNDINGS, of an element to a level.
        seed: of stochastic rounding.
        saturate: whether numbers beyond the format take its largest (else its infinity, or
            NaN where it has none).
        outlier_threshold: columns with an element of at least this magnitude are kept in 16
            bits, as in LLM.int8(); None quantizes all of them.
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
    saturate: bool = True
    outlier_threshold: float | None = None

    def __post_init__(self) -> None:
        if self.format not in SCHEME_FORMATS:
            raise UsageError(f"Unknown format {self.format!r}; formats are {FORMAT_HELP}.")
        if self.granularity is None:
            object.__setattr__(self, "granularity", SCHEME_FORMATS[self.format].default)
        if self.scale_rule == "":
            object.__setattr__(self, "scale_rule", self.scale_rules[0])
        self._check_granularity()
        self._check_scale()
        self._check_nesting()
        self._check_rounding()
        self._check_outliers()

    def _check_granularity(self) -> None:
        refusal = refused_granularity(self.format, self.granularity)
        if refusal is not None:
            raise UsageError(refusal)

    def _check_scale(self) -> None:
        name = self.format
        if self.scale_rule not in self.scale_rules:
            if self.scale_rule not in (*ALL_SCALE_RULES, "absmax"):
                raise UsageError(
                    f"Unknown scale rule {self.scale_rule!r}; rules are "
                    f"{', '.join(ALL_SCALE_RULES)}."
                )
            whose = (
                _INTEGERS if self.scale_rule in SCALE_RULES[Family.INTEGER] else "the mx formats"
            )
            raise UsageError(
                f"{name} cannot use the scale rule {self.scale_rule}: it is for {whose}."
            )
        if not self.symmetric:
            if self.family is not Family.INTEGER:
                raise UsageError(f"{name} has no zero point: asym is for {_INTEGERS}.")
            if self.scale_rule != "absmax":
                raise UsageError(
                    f"asym and {self.scale_rule} exclude each other: an asymmetric scale comes "
                    f"from min and max, so name one of the two."
                )
        elif self.float_zero_point:
            raise UsageError(
                "zpfloat is a kind of zero point, and sym has none: write asym:zpfloat."
            )

    def _check_nesting(self) -> None:
        if not self.double_quantization:
            if self.nested_block != NESTED_BLOCK:
                raise UsageError("A nested block belongs to double quantization: write dq with it.")
            return
        if self.family is not Family.CODEBOOK:
            raise UsageError(f"dq is for nf4 and fp4; {self.format} has no absmax to nest.")
        if not 1 <= self.nested_block <= MAX_DOUBLE_QUANTIZED_BLOCK:
            raise UsageError(
                f"dq{self.nested_block} is not possible: a constant is shared by 1 to "
                f"{MAX_DOUBLE_QUANTIZED_BLOCK} scales."
            )
        if isinstance(self.granularity, PerBlock) and (
            self.granularity.size > MAX_DOUBLE_QUANTIZED_BLOCK
        ):
            raise UsageError(
                f"dq takes blocks of at most {MAX_DOUBLE_QUANTIZED_BLOCK}, as in "
                f"bitsandbytes; {self.granularity} is larger."
            )

    def _check_rounding(self) -> None:
        name = self.format
        if self.rounding not in ROUNDINGS:
            raise UsageError(
                f"Unknown rounding {self.rounding!r}; roundings are {', '.join(ROUNDINGS)}."
            )
        if self.rounding != "nearest":
            if self.family in (Family.CODEBOOK, Family.TERNARY):
                raise UsageError(f"{name} rounds to the nearest level and has no {self.rounding}.")
            if self.scale_rule == "signed":
                raise UsageError(
                    f"signed is GGUF's rule with its own rounding; {self.rounding} goes with "
                    f"absmax, full or asym."
                )
        if self.seed and self.rounding != "stochastic":
            raise UsageError("A seed belongs to stochastic rounding: write stochastic with it.")
        if not 0 <= self.seed <= MAX_SEED:
            raise UsageError(f"A seed is a whole number from 0 to {MAX_SEED:,}; got {self.seed}.")
        if not self.saturate and not SCHEME_FORMATS[name].overflows:
            raise UsageError(
                f"{name} has neither an infinity nor NaN for what lies beyond its largest level: "
                f"nosat is for the casts, e4m3 and e5m2."
            )

    def _check_outliers(self) -> None:
        threshold = self.outlier_threshold
        if threshold is None:
            return
        if self.family is not Family.INTEGER:
            raise UsageError(f"{self.format} has no outlier columns: outliers is for {_INTEGERS}.")
        if isinstance(self.granularity, PerModel | PerColumn):
            raise UsageError(
                f"Outlier columns are taken out of scales that they share with others, and per "
                f"{self.granularity} that is not so: write {self.format}:row:outliers{threshold:g}."
            )
        if not (math.isfinite(threshold) and threshold > 0):
            raise UsageError(f"An outlier threshold is a magnitude above 0; got {threshold:g}.")

    @property
    def family(self) -> Family:
        return SCHEME_FORMATS[self.format].family

    @property
    def element(self) -> str | None:
        """The format of the catalogue that elements are rounded to, where there is one."""
        return SCHEME_FORMATS[self.format].element

    @property
    def bits(self) -> int:
        """Bits of storage of one code, scales not counted."""
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
        if not self.symmetric:
            parts.append("asym")
        if self.float_zero_point:
            parts.append("zpfloat")
        if self.scale_rule != self.scale_rules[0]:
            parts.append(self.scale_rule)
        if self.double_quantization:
            parts.append("dq" if self.nested_block == NESTED_BLOCK else f"dq{self.nested_block}")
        if self.rounding != "nearest":
            parts.append(self.rounding + (str(self.seed) if self.seed else ""))
        if not self.saturate:
            parts.append("nosat")
        if self.outlier_threshold is not None:
            parts.append(f"outliers{self.outlier_threshold!r}")
        return ":".join(parts)

    @classmethod
    def parse(cls, text: str) -> Scheme:
        """The scheme that `text` names; case and spaces around the parts do not matter.

        Raises UsageError, naming what is allowed, when it does not parse or is impossible.
        """
        from qtui_core.quant.scheme_text import scheme_arguments

        return cls(**scheme_arguments(text))


def refused_granularity(name: str, granularity: Granularity | None) -> str | None:
    """Why the format `name` cannot have this granularity; None where it can."""
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
                    f"{name} has no scale per model: it is the mean magnitude of what shares it, "
                    f"and of a model the extremes are known only; write {name}:tensor."
                )
    return None


def _free_element(name: str) -> str:
    """The format with the elements of a microscaling one and a scale of any sharing."""
    element = SCHEME_FORMATS[name].element
    return element if element is not None and element != name else "int8"
