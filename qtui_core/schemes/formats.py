"""The formats that a scheme can name, with their defaults and scale rules."""

from __future__ import annotations

from enum import Enum

from qtui_core.dataclass import dataclass
from qtui_core.schemes.granularity import Granularity, PerBlock, PerGroup, PerRow, PerTensor

#: The default number of scales that share a constant under double quantization, and the largest
#: block for which it is defined; both from bitsandbytes.
NESTED_BLOCK = 256
MAX_DOUBLE_QUANTIZED_BLOCK = 4096
#: Largest seed of stochastic rounding: one 32-bit word.
MAX_SEED = 2**32 - 1


class Family(Enum):
    """The kind of levels of a format. It decides which options a scheme can have."""

    INTEGER = "integer"
    FLOAT = "scaled float"
    CODEBOOK = "codebook"
    CAST = "cast"
    MICROSCALING = "microscaling"
    """Elements of a small format with a power-of-two scale (OCP MX)."""
    TWO_LEVEL = "two-level"
    """Elements with a small-float scale for each block and one scale for the tensor (NVFP4)."""
    TERNARY = "ternary"


@dataclass(frozen=True)
class SchemeFormat:
    """A format a scheme can name.

    Attributes:
        bits: storage of one code (32 for TF32, which uses 19 of them; 2 for ternary, which needs
            1.58).
        default: the granularity of a text without one; None for casts.
        element: the format of `qtui_core.formats` that elements are rounded to, if there is one.
    """

    name: str
    family: Family
    bits: int
    default: Granularity | None
    element: str | None = None


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
#: Families whose formats have a fixed granularity.
FIXED_GRANULARITY = (Family.MICROSCALING, Family.TWO_LEVEL)
ALL_SCALE_RULES = tuple(rule for rules in SCALE_RULES.values() for rule in rules)
ROUNDINGS = ("nearest", "stochastic")

FORMAT_HELP = "int2 to int8, " + ", ".join(
    f.name for f in _FORMATS if f.family is not Family.INTEGER
)
