"""Conventions of the libraries that cast numbers: torch, ml_dtypes, gfloat."""

from qtui_core.conformance.convention import (
    BYTE_EQUAL,
    DIFFERS,
    VALUE_EQUAL,
    Convention,
    KnownFault,
    Library,
)
from qtui_core.formats import get_format

_OVERFLOW = {"saturate": "saturates", "nosat": "does not saturate"}


def _cast(
    library: str,
    name: str,
    theirs: str,
    limit: str = "nosat",
    *,
    since: str = "",
    numbers: tuple[str, ...] = ("every BF16", "ties"),
) -> Convention:
    title = get_format(name).title
    return Convention(
        f"{library}.{name}", "casts", BYTE_EQUAL, f"encode {name} nearest-even {limit}", theirs,
        f"A cast to {title} rounds to nearest even and {_OVERFLOW[limit]}", since=since,
        numbers=numbers,
    )  # fmt: skip


def _scales(library: str, theirs: str) -> tuple[Convention, ...]:
    """How casts to E8M0, the scale of the MX formats, behave."""
    return (
        Convention(
            f"{library}.e8m0", "casts", BYTE_EQUAL, "encode e8m0 nearest-even nosat", theirs,
            "A cast of normal numbers to E8M0 rounds to the nearest power of two",
            numbers=("positive BF16, infinity",),
        ),
        Convention(
            f"{library}.e8m0-smallest", "casts", DIFFERS, "encode e8m0 nearest-even saturate",
            theirs,
            "Next to the smallest E8M0, 2^-127, a cast takes the farther power of two",
            "numbers just above 2^-127 become 2^-126, though 2^-127 is nearer",
            numbers=("subnormal BF16",),
        ),
    )  # fmt: skip


TORCH = Library(
    name="torch",
    module="torch",
    tested="2.13.0",
    conventions=(
        _cast("torch", "bf16", "x.to(torch.bfloat16)"),
        _cast("torch", "fp16", "x.to(torch.float16)"),
        _cast("torch", "e4m3", "x.to(torch.float8_e4m3fn)", "saturate", since="2.12"),
        _cast("torch", "e5m2", "x.to(torch.float8_e5m2)"),
        _cast("torch", "e4m3fnuz", "x.to(torch.float8_e4m3fnuz)"),
        _cast("torch", "e5m2fnuz", "x.to(torch.float8_e5m2fnuz)"),
        *_scales("torch", "x.to(torch.float8_e8m0fnu)"),
        Convention(
            "torch.e8m0-zero", "casts", BYTE_EQUAL, "encode e8m0 nearest-even saturate",
            "torch.zeros(1).to(torch.float8_e8m0fnu)",
            "Zero, which E8M0 does not have, becomes 2^-127",
            numbers=("zero",),
        ),
        Convention(
            "torch.e5m2-nan", "casts", VALUE_EQUAL, "encode e5m2 nearest-even nosat",
            "x.to(torch.float8_e5m2)",
            "NaN becomes 0x7F in E5M2",
            "E5M2 has three NaN codes; qtui and ml_dtypes write 0x7E",
            numbers=("NaN",),
        ),
    ),
    faults=(
        KnownFault(
            "torch.e4m3-infinity", "saturates_infinities",
            "A cast to float8_e4m3fn turns infinities into 448",
            "an overflow upstream looks like a large finite number",
            "look for infinities before casting (torch.isinf)",
        ),
        KnownFault(
            "torch.e4m3-overflow", "overflows_to_nan",
            "A cast to float8_e4m3fn turns numbers above 464 into NaN",
            "one outlier poisons the product; torch 2.12 and later saturate instead",
            "clamp to -448 to 448 before casting, or update torch",
        ),
    ),
)  # fmt: skip

ML_DTYPES = Library(
    name="ml_dtypes",
    module="ml_dtypes",
    tested="0.6.0",
    conventions=(
        *(
            _cast("ml_dtypes", name, f"x.astype({theirs})", since=since)
            for name, theirs, since in (
                ("bf16", "bfloat16", ""),
                ("e4m3", "float8_e4m3fn", ""),
                ("e5m2", "float8_e5m2", ""),
                ("e4m3-ieee", "float8_e4m3", "0.5"),
                ("e3m4", "float8_e3m4", "0.5"),
                ("e4m3fnuz", "float8_e4m3fnuz", ""),
                ("e5m2fnuz", "float8_e5m2fnuz", ""),
                ("e4m3b11fnuz", "float8_e4m3b11fnuz", ""),
            )
        ),
        *(
            _cast("ml_dtypes", name, f"x.astype({theirs})", "saturate", since="0.5")
            for name, theirs in (
                ("e3m2", "float6_e3m2fn"),
                ("e2m3", "float6_e2m3fn"),
                ("e2m1", "float4_e2m1fn"),
            )
        ),
        Convention(
            "ml_dtypes.e4m3-saturate", "casts", DIFFERS, "encode e4m3 nearest-even saturate",
            "x.astype(float8_e4m3fn)",
            "E4M3 above 464 is NaN, where torch and qtui saturate",
            "ml_dtypes never saturates; qtui does unless asked not to",
            numbers=("every BF16",),
        ),
        *_scales("ml_dtypes", "x.astype(float8_e8m0fnu)"),
        Convention(
            "ml_dtypes.e8m0-zero", "casts", BYTE_EQUAL, "encode e8m0 nearest-even nosat",
            "np.zeros(1).astype(float8_e8m0fnu)",
            "Zero, which E8M0 does not have, becomes NaN",
            numbers=("zero",),
        ),
        Convention(
            "ml_dtypes.nan", "casts", BYTE_EQUAL, "encode e5m2 nearest-even nosat",
            "x.astype(float8_e5m2)",
            "NaN becomes 0x7E in E5M2",
            numbers=("NaN",),
        ),
        Convention(
            "ml_dtypes.int4-wraps", "casts", BYTE_EQUAL, "encode int4 toward-zero nosat",
            "x.astype(int4)",
            "A cast to int4 cuts the fraction off and wraps around: 8 becomes -8",
            numbers=("BF16 below 64",),
        ),
        Convention(
            "ml_dtypes.int4", "casts", DIFFERS, "encode int4 nearest-even saturate",
            "x.astype(int4)",
            "A cast to int4 is no quantization to INT4",
            "it wraps and truncates, where every quantizer saturates and rounds",
            numbers=("BF16 below 64",),
        ),
    ),
    faults=(
        KnownFault(
            "ml_dtypes.int4-overflow", "wraps",
            "A cast to int4 wraps around",
            "the largest positive elements change their sign",
            "round and clip to -8 to 7 before casting",
        ),
        KnownFault(
            "ml_dtypes.nan-to-zero", "loses_nan",
            "NaN cast to the FP4 and FP6 types, which have none, becomes a zero",
            "a broken tensor looks healthy after the cast",
            "look for NaN before casting (np.isnan)",
        ),
    ),
)  # fmt: skip

GFLOAT = Library(
    name="gfloat",
    module="gfloat",
    tested="0.5.2",
    conventions=(
        *(
            _cast("gfloat", name, f"round_ndarray, encode_ndarray({theirs})", limit)
            for name, theirs, limit in (
                ("fp16", "binary16", "nosat"),
                ("bf16", "bfloat16", "nosat"),
                ("e4m3", "ocp_e4m3", "saturate"),
                ("e5m2", "ocp_e5m2", "saturate"),
                ("e3m2", "ocp_e3m2", "saturate"),
                ("e2m3", "ocp_e2m3", "saturate"),
                ("e2m1", "ocp_e2m1", "saturate"),
            )
        ),
        _cast(
            "gfloat", "mxint8", "round_ndarray, encode_ndarray(ocp_int8)", "saturate",
            numbers=("BF16 below 4",),
        ),
        Convention(
            "gfloat.modes", "modes", BYTE_EQUAL, "encode e5m2 nearest-away saturate",
            "round_ndarray(ocp_e5m2, x, mode, sat)",
            "E5M2 in the other rounding modes, saturating and not",
        ),
        Convention(
            "gfloat.nan", "casts", VALUE_EQUAL, "encode e4m3 nearest-even nosat",
            "round_ndarray(ocp_e4m3, x, sat=False)",
            "E4M3 that does not saturate overflows to NaN",
            "the NaN of a negative number keeps its sign here and loses it there",
            numbers=("every BF16",),
        ),
        Convention(
            "gfloat.e8m0", "casts", DIFFERS, "encode e8m0 nearest-even saturate",
            "round_ndarray(ocp_e8m0, x)",
            "Ties of E8M0 are broken by the code: 3 becomes 2, and 6 becomes 8",
            "torch, ml_dtypes and qtui round these ties up, to the even significand",
            numbers=("positive BF16",),
        ),
        *(
            Convention(
                f"gfloat.block-{name}", "microscaling", BYTE_EQUAL, name,
                f"compute_scale_amax, encode_block({theirs})",
                f"{title} takes 2^floor(log2 absmax) over the largest power of two of its "
                "elements as the scale of 32",
            )
            for name, title, theirs in (
                ("mxfp4", "MXFP4", "mxfp4_e2m1"),
                ("mxfp6-e3m2", "MXFP6 E3M2", "mxfp6_e3m2"),
                ("mxfp6-e2m3", "MXFP6 E2M3", "mxfp6_e2m3"),
                ("mxfp8-e4m3", "MXFP8 E4M3", "mxfp8_e4m3"),
                ("mxfp8-e5m2", "MXFP8 E5M2", "mxfp8_e5m2"),
            )
        ),
        Convention(
            "gfloat.block-mxint8", "microscaling", DIFFERS, "mxint8",
            "compute_scale_amax, encode_block(mxint8)",
            "MXINT8 uses the code of -2, which no positive element has",
            "OCP lets it be left out, and qtui does: elements end at -127/64",
        ),
    ),
    faults=(
        KnownFault(
            "gfloat.below-a-tie", "rounds_below_a_tie_away",
            "Ties away from zero also takes numbers just below the tie",
            "a reference value computed with it can be one level off",
            "use nearest-even where the last bit of a float64 matters",
        ),
    ),
)  # fmt: skip
