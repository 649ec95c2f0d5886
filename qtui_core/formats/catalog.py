"""Every format, in the order in which tables show them: from wide to narrow, integers last."""

from __future__ import annotations

from qtui_core.errors import UsageError
from qtui_core.formats.rounding import Rounding
from qtui_core.formats.spec import FloatFormat, Format, IntFormat, Specials

FP64 = FloatFormat("fp64", "FP64", 11, 52, 1023, Specials.IEEE, note="IEEE 754 binary64")
FP32 = FloatFormat("fp32", "FP32", 8, 23, 127, Specials.IEEE, note="IEEE 754 binary32")
TF32 = FloatFormat(
    "tf32",
    "TF32",
    8,
    10,
    127,
    Specials.IEEE,
    padding_bits=13,
    hardware_rounding=Rounding.NEAREST_AWAY,
    note=(
        "19 bits in a 32-bit word. NVIDIA's cvt.rna.tf32 rounds ties away from zero; an FP32 "
        "word given to the tensor core as it is gets truncated"
    ),
)
BF16 = FloatFormat("bf16", "BF16", 8, 7, 127, Specials.IEEE, note="the upper half of FP32")
FP16 = FloatFormat("fp16", "FP16", 5, 10, 15, Specials.IEEE, note="IEEE 754 binary16")

E4M3 = FloatFormat(
    "e4m3", "E4M3", 4, 3, 7, Specials.FN, note="OCP FP8, float8_e4m3fn: weights and activations"
)
E5M2 = FloatFormat("e5m2", "E5M2", 5, 2, 15, Specials.IEEE, note="OCP FP8: gradients")
E4M3_IEEE = FloatFormat(
    "e4m3-ieee", "E4M3 IEEE", 4, 3, 7, Specials.IEEE, note="E4M3 that gives a binade to infinity"
)
E3M4 = FloatFormat("e3m4", "E3M4", 3, 4, 3, Specials.IEEE, note="IEEE-like, more mantissa")
E4M3FNUZ = FloatFormat(
    "e4m3fnuz", "E4M3FNUZ", 4, 3, 8, Specials.FNUZ, note="FP8 of AMD MI300 and Graphcore"
)
E5M2FNUZ = FloatFormat(
    "e5m2fnuz", "E5M2FNUZ", 5, 2, 16, Specials.FNUZ, note="FP8 of AMD MI300 and Graphcore"
)
E4M3B11FNUZ = FloatFormat(
    "e4m3b11fnuz", "E4M3B11FNUZ", 4, 3, 11, Specials.FNUZ, note="E4M3FNUZ moved 8 times lower"
)

E3M2 = FloatFormat("e3m2", "E3M2", 3, 2, 3, Specials.FINITE, note="OCP FP6, element of MXFP6")
E2M3 = FloatFormat("e2m3", "E2M3", 2, 3, 1, Specials.FINITE, note="OCP FP6, element of MXFP6")
E2M1 = FloatFormat(
    "e2m1", "E2M1", 2, 1, 1, Specials.FINITE, note="OCP FP4, element of MXFP4 and NVFP4"
)
E3M0 = FloatFormat("e3m0", "E3M0", 3, 0, 3, Specials.FINITE, note="FP4 of powers of two")
E8M0 = FloatFormat(
    "e8m0",
    "E8M0",
    8,
    0,
    127,
    Specials.FN,
    signed=False,
    zero_exponent_is_subnormal=False,
    note="OCP block scale: powers of two, no sign and no zero",
)

INT16 = IntFormat("int16", "INT16", 16)
INT8 = IntFormat("int8", "INT8", 8)
INT4 = IntFormat("int4", "INT4", 4)
MXINT8 = IntFormat(
    "mxint8",
    "MXINT8",
    8,
    fraction_bits=6,
    note="OCP element in steps of 1/64; -2 is a code that may be left unused",
)

#: Every format by its name, in display order: that of the definitions above.
FORMATS: dict[str, Format] = {
    fmt.name: fmt for fmt in tuple(vars().values()) if isinstance(fmt, FloatFormat | IntFormat)
}

#: What other libraries call the same formats.
_ALIASES = {
    **dict.fromkeys(("float64", "double"), "fp64"),
    **dict.fromkeys(("float32", "float"), "fp32"),
    **dict.fromkeys(("float16", "half"), "fp16"),
    "bfloat16": "bf16",
    "e4m3fn": "e4m3",
    "float8_e4m3": "e4m3-ieee",
    "float8_e8m0fnu": "e8m0",
    **{f"float8_{name}": name for name in ("e5m2", "e3m4", "e4m3fnuz", "e5m2fnuz", "e4m3b11fnuz")},
    **{
        f"float{bits}_{name}fn": name
        for bits, name in ((8, "e4m3"), (6, "e3m2"), (6, "e2m3"), (4, "e2m1"))
    },
}


def get_format(name: str) -> Format:
    """The format of that name, or of the name that torch or ml_dtypes has for it; upper and lower
    case are the same.

    Raises UsageError with the names of all formats.
    """
    key = name.strip().lower()
    fmt = FORMATS.get(_ALIASES.get(key, key))
    if fmt is None:
        raise UsageError(f"There is no format {name!r}. Known formats: {', '.join(FORMATS)}.")
    return fmt


def float_format(name: str) -> FloatFormat:
    """The same for the name of a float."""
    fmt = get_format(name)
    assert isinstance(fmt, FloatFormat)
    return fmt
