"""What is done to a tensor, as data: a format, who shares a scale, and how it is chosen.

The text of a scheme is `FORMAT[:GRANULARITY][:OPTION...]`, the same on the command line, in
JSON and on the screen: `int4:group64:asym`, `e4m3:row`, `nf4:block64:dq`, `mxfp4:ceil`, `bf16`.
`scheme_text` reads it.
"""

from __future__ import annotations

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.schemes.combinations import check_scheme, refused_granularity
from qtui_core.schemes.formats import (
    ALL_SCALE_RULES,
    FIXED_GRANULARITY,
    FORMAT_HELP,
    MAX_DOUBLE_QUANTIZED_BLOCK,
    NESTED_BLOCK,
    ROUNDINGS,
    SCALE_RULES,
    SCHEME_FORMATS,
    Family,
    SchemeFormat,
)
from qtui_core.schemes.granularity import Granularity
from qtui_core.schemes.text import scheme_arguments

__all__ = [
    "ALL_SCALE_RULES",
    "FIXED_GRANULARITY",
    "FORMAT_HELP",
    "MAX_DOUBLE_QUANTIZED_BLOCK",
    "NESTED_BLOCK",
    "ROUNDINGS",
    "SCALE_RULES",
    "SCHEME_FORMATS",
    "Family",
    "Scheme",
    "SchemeFormat",
    "refused_granularity",
]


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
            bits; None quantizes all of them. LLM.int8() finds its columns so in activations
            and keeps those of the weight that they meet.
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
        check_scheme(self)

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

    @property
    def clips(self) -> bool:
        """Whether a scale may leave the largest values of a group beyond the outermost levels:
        a power of two rounded down, a scale rounded to E4M3, a whole zero point, absmax/7.5."""
        match self.family:
            case Family.MICROSCALING:
                return self.scale_rule in ("floor", "even")
            case Family.TWO_LEVEL:
                return True
            case Family.INTEGER:
                return self.scale_rule == "full" or not (self.symmetric or self.float_zero_point)
        return False

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
        return cls(**scheme_arguments(text))
