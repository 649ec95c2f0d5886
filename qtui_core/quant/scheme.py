"""What is done to a tensor, as data: a format, who shares a scale, and how it is chosen.

The text of a scheme is `FORMAT[:GRANULARITY][:OPTION...]`, the same on the command line, in
JSON and on the screen: `int4:group64:asym`, `e4m3:row`, `nf4:block64:dq`, `bf16`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from qtui_core.errors import UsageError
from qtui_core.quant.granularity import (
    GRANULARITY_HELP,
    Granularity,
    PerBlock,
    PerGroup,
    PerRow,
    PerTensor,
    parse_granularity,
)

#: Elements of `absmax` that share one constant under double quantization, and the largest
#: block it is defined for; both are those of bitsandbytes.
NESTED_BLOCK = 256
MAX_DOUBLE_QUANTIZED_BLOCK = 4096


class Family(Enum):
    """What kind of levels a format has, which decides what else a scheme may say."""

    INTEGER = "integer"
    FLOAT = "scaled float"
    CODEBOOK = "codebook"
    CAST = "cast"


@dataclass(frozen=True)
class SchemeFormat:
    """A format a scheme can name. `bits` is what one code occupies in storage (32 for TF32,
    which uses 19 of them); `default` is the granularity when the text gives none."""

    name: str
    family: Family
    bits: int
    default: Granularity | None


_FORMATS = (
    *(SchemeFormat(f"int{b}", Family.INTEGER, b, PerGroup(64)) for b in (2, 3, 4)),
    *(SchemeFormat(f"int{b}", Family.INTEGER, b, PerRow()) for b in (5, 6, 7, 8)),
    SchemeFormat("e4m3", Family.FLOAT, 8, PerTensor()),
    SchemeFormat("e5m2", Family.FLOAT, 8, PerTensor()),
    SchemeFormat("e2m1", Family.FLOAT, 4, PerGroup(64)),
    SchemeFormat("bf16", Family.CAST, 16, None),
    SchemeFormat("fp16", Family.CAST, 16, None),
    SchemeFormat("tf32", Family.CAST, 32, None),
    SchemeFormat("nf4", Family.CODEBOOK, 4, PerBlock(64)),
    SchemeFormat("fp4", Family.CODEBOOK, 4, PerBlock(64)),
)
SCHEME_FORMATS: dict[str, SchemeFormat] = {f.name: f for f in _FORMATS}

#: Symmetric scale rules of the integers. `absmax`: absmax / (2^(b-1) - 1), codes restricted
#: to a symmetric range. `full`: absmax / (2^b - 1) * 2, all codes (torchao,
#: compressed-tensors). `signed`: the element largest in magnitude, with its sign, over
#: -2^(b-1), all codes (GGUF Q4_0).
SCALE_RULES = ("absmax", "full", "signed")

FORMAT_HELP = "int2 to int8, e4m3, e5m2, e2m1, bf16, fp16, tf32, nf4, fp4"
OPTION_HELP = "sym or asym and absmax, full or signed with the integers, dq with nf4 and fp4"


@dataclass(frozen=True)
class Scheme:
    """One way to quantize a tensor. `str(scheme)` is its shortest complete text, and
    `Scheme.parse(str(scheme)) == scheme`.

    Raises UsageError for a combination that is not possible.

    Attributes:
        format: a key of SCHEME_FORMATS.
        granularity: who shares a scale; None for the casts, which have no scale.
        symmetric: False for integers with a scale from min and max and a zero point.
        scale_rule: one of SCALE_RULES; means something for symmetric integers only.
        double_quantization: whether the scales are themselves stored in 8 bits.
    """

    format: str
    granularity: Granularity | None = None
    symmetric: bool = True
    scale_rule: str = "absmax"
    double_quantization: bool = False

    def __post_init__(self) -> None:
        if self.format not in SCHEME_FORMATS:
            raise UsageError(f"Unknown format {self.format!r}; formats are {FORMAT_HELP}.")
        if self.scale_rule not in SCALE_RULES:
            raise UsageError(
                f"Unknown scale rule {self.scale_rule!r}; rules are {', '.join(SCALE_RULES)}."
            )
        if self.granularity is None:
            object.__setattr__(self, "granularity", SCHEME_FORMATS[self.format].default)
        self._check_granularity()
        self._check_options()

    def _check_granularity(self) -> None:
        name, granularity = self.format, self.granularity
        if self.family is Family.CAST and granularity is not None:
            raise UsageError(
                f"{name} is a cast without a scale, so it takes no granularity: write just {name}."
            )
        if self.family is Family.CODEBOOK and not isinstance(granularity, PerBlock):
            raise UsageError(
                f"{name} cannot be scaled per {granularity}: bitsandbytes defines it over "
                f"blocks of the flattened tensor, so write {name}:block64 or another size."
            )

    def _check_options(self) -> None:
        name = self.format
        if self.family is not Family.INTEGER:
            if not self.symmetric:
                raise UsageError(
                    f"{name} has no zero point: asym is for the integers, int2 to int8."
                )
            if self.scale_rule != "absmax":
                raise UsageError(
                    f"{name} cannot use the scale rule {self.scale_rule}: it is for the "
                    f"integers, int2 to int8."
                )
        if not self.symmetric and self.scale_rule != "absmax":
            raise UsageError(
                f"asym and {self.scale_rule} exclude each other: an asymmetric scale comes "
                f"from min and max, so name one of the two."
            )
        if self.double_quantization:
            if self.family is not Family.CODEBOOK:
                raise UsageError(f"dq is for nf4 and fp4; {name} keeps its scales in 32 bits.")
            if isinstance(self.granularity, PerBlock) and (
                self.granularity.size > MAX_DOUBLE_QUANTIZED_BLOCK
            ):
                raise UsageError(
                    f"dq takes blocks of at most {MAX_DOUBLE_QUANTIZED_BLOCK}, as in "
                    f"bitsandbytes; {self.granularity} is larger."
                )

    @property
    def family(self) -> Family:
        return SCHEME_FORMATS[self.format].family

    @property
    def bits(self) -> int:
        """Bits of storage of one code, scales not counted."""
        return SCHEME_FORMATS[self.format].bits

    def __str__(self) -> str:
        parts = [self.format]
        if self.granularity is not None:
            parts.append(str(self.granularity))
        if not self.symmetric:
            parts.append("asym")
        if self.scale_rule != "absmax":
            parts.append(self.scale_rule)
        if self.double_quantization:
            parts.append("dq")
        return ":".join(parts)

    @classmethod
    def parse(cls, text: str) -> Scheme:
        """The scheme that `text` names; case and spaces around the parts do not matter.

        Raises UsageError, naming what is allowed, when it does not parse or is impossible.
        """
        name, *parts = [part.strip().lower() for part in text.split(":")]
        if name not in SCHEME_FORMATS:
            raise UsageError(
                f"Unknown format {name!r} in the scheme {text!r}; formats are {FORMAT_HELP}."
            )
        granularity: Granularity | None = None
        chosen: dict[str, str] = {}
        for part in parts:
            found = parse_granularity(part)
            kind = "granularity" if found is not None else _option_kind(part)
            if kind is None:
                raise UsageError(
                    f"{part!r} in the scheme {text!r} is neither a granularity "
                    f"({GRANULARITY_HELP}) nor an option ({OPTION_HELP})."
                )
            if kind in chosen:
                raise UsageError(
                    f"The scheme {text!r} says both {chosen[kind]} and {part}: "
                    f"give one {kind} only."
                )
            chosen[kind] = part
            granularity = found if found is not None else granularity
        if chosen.get("symmetry") == "asym" and "scale rule" in chosen:
            raise UsageError(
                f"The scheme {text!r} is impossible: an asymmetric scale comes from min and "
                f"max, so leave out asym or {chosen['scale rule']}."
            )
        return cls(
            format=name,
            granularity=granularity,
            symmetric=chosen.get("symmetry") != "asym",
            scale_rule=chosen.get("scale rule", "absmax"),
            double_quantization="double quantization" in chosen,
        )


def _option_kind(part: str) -> str | None:
    if part in ("sym", "asym"):
        return "symmetry"
    if part in SCALE_RULES:
        return "scale rule"
    return "double quantization" if part == "dq" else None
