"""Conventions of the libraries that cast numbers: torch, ml_dtypes, gfloat."""

from qtui_core.conformance.convention import Convention, KnownFault, Library, Verdict
from qtui_core.formats import get_format

_OVERFLOW = {"saturate": "saturates", "nosat": "does not saturate"}


def _cast(
    library: str, name: str, theirs: str, limit: str = "nosat", since: str = ""
) -> Convention:
    title = get_format(name).title
    return Convention(
        id=f"{library}.{name}",
        says=f"A cast to {title} rounds to nearest even and {_OVERFLOW[limit]}",
        ours=f"encode {name} nearest-even {limit}",
        theirs=theirs,
        expected=Verdict.BYTE_EQUAL,
        since=since,
    )


def _scales(library: str, theirs: str) -> tuple[Convention, ...]:
    """What casts to E8M0, the scale of the MX formats, do."""
    return (
        Convention(
            id=f"{library}.e8m0",
            says="A cast of normal numbers to E8M0 rounds to the nearest power of two",
            ours="encode e8m0 nearest-even nosat",
            theirs=theirs,
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id=f"{library}.e8m0-smallest",
            says="Next to the smallest E8M0, 2^-127, a cast takes the farther power of two",
            ours="encode e8m0 nearest-even saturate",
            theirs=theirs,
            expected=Verdict.DIFFERS,
            why="numbers just above 2^-127 become 2^-126, though 2^-127 is nearer",
        ),
    )


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
            id="torch.e8m0-zero",
            says="Zero, which E8M0 does not have, becomes 2^-127",
            ours="encode e8m0 nearest-even saturate",
            theirs="torch.zeros(1).to(torch.float8_e8m0fnu)",
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="torch.e5m2-nan",
            says="NaN becomes 0x7F in E5M2",
            ours="encode e5m2 nearest-even nosat",
            theirs="x.to(torch.float8_e5m2)",
            expected=Verdict.VALUE_EQUAL,
            why="E5M2 has three NaN codes; qtui and ml_dtypes write 0x7E",
        ),
    ),
    faults=(
        KnownFault(
            id="torch.e4m3-infinity",
            says="A cast to float8_e4m3fn turns infinities into 448",
            consequence="an overflow upstream looks like a large finite number",
            remedy="look for infinities before casting (torch.isinf)",
        ),
        KnownFault(
            id="torch.e4m3-overflow",
            says="A cast to float8_e4m3fn turns numbers above 464 into NaN",
            consequence="one outlier poisons the product; torch 2.12 and later saturate instead",
            remedy="clamp to -448 to 448 before casting, or update torch",
        ),
    ),
)

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
            id="ml_dtypes.e4m3-saturate",
            says="E4M3 above 464 is NaN, where torch and qtui saturate",
            ours="encode e4m3 nearest-even saturate",
            theirs="x.astype(float8_e4m3fn)",
            expected=Verdict.DIFFERS,
            why="ml_dtypes never saturates; qtui does unless asked not to",
        ),
        *_scales("ml_dtypes", "x.astype(float8_e8m0fnu)"),
        Convention(
            id="ml_dtypes.e8m0-zero",
            says="Zero, which E8M0 does not have, becomes NaN",
            ours="encode e8m0 nearest-even nosat",
            theirs="np.zeros(1).astype(float8_e8m0fnu)",
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="ml_dtypes.nan",
            says="NaN becomes 0x7E in E5M2",
            ours="encode e5m2 nearest-even nosat",
            theirs="x.astype(float8_e5m2)",
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="ml_dtypes.int4-wraps",
            says="A cast to int4 cuts the fraction off and wraps around: 8 becomes -8",
            ours="encode int4 toward-zero nosat",
            theirs="x.astype(int4)",
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="ml_dtypes.int4",
            says="A cast to int4 is no quantization to INT4",
            ours="encode int4 nearest-even saturate",
            theirs="x.astype(int4)",
            expected=Verdict.DIFFERS,
            why="it wraps and truncates, where every quantizer saturates and rounds",
        ),
    ),
    faults=(
        KnownFault(
            id="ml_dtypes.int4-overflow",
            says="A cast to int4 wraps around",
            consequence="the largest positive elements change their sign",
            remedy="round and clip to -8 to 7 before casting",
        ),
        KnownFault(
            id="ml_dtypes.nan-to-zero",
            says="NaN cast to the FP4 and FP6 types, which have none, becomes a zero",
            consequence="a broken tensor looks healthy after the cast",
            remedy="look for NaN before casting (np.isnan)",
        ),
    ),
)

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
                ("mxint8", "ocp_int8", "saturate"),
            )
        ),
        Convention(
            id="gfloat.modes",
            says="E5M2 in the other rounding modes, saturating and not",
            ours="encode e5m2 nearest-away saturate",
            theirs="round_ndarray(ocp_e5m2, x, mode, sat)",
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="gfloat.nan",
            says="E4M3 that does not saturate overflows to NaN",
            ours="encode e4m3 nearest-even nosat",
            theirs="round_ndarray(ocp_e4m3, x, sat=False)",
            expected=Verdict.VALUE_EQUAL,
            why="the NaN of a negative number keeps its sign here and loses it there",
        ),
        Convention(
            id="gfloat.e8m0",
            says="Ties of E8M0 are broken by the code: 3 becomes 2, and 6 becomes 8",
            ours="encode e8m0 nearest-even saturate",
            theirs="round_ndarray(ocp_e8m0, x)",
            expected=Verdict.DIFFERS,
            why="torch, ml_dtypes and qtui round these ties up, to the even significand",
        ),
        *(
            Convention(
                id=f"gfloat.block-{name}",
                says=f"{title} takes 2^floor(log2 absmax) over the largest power of two of its "
                "elements as the scale of 32",
                ours=name,
                theirs=f"compute_scale_amax, encode_block({theirs})",
                expected=Verdict.BYTE_EQUAL,
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
            id="gfloat.block-mxint8",
            says="MXINT8 uses the code of -2, which no positive element has",
            ours="mxint8",
            theirs="compute_scale_amax, encode_block(mxint8)",
            expected=Verdict.DIFFERS,
            why="OCP lets it be left out, and qtui does: elements end at -127/64",
        ),
    ),
    faults=(
        KnownFault(
            id="gfloat.below-a-tie",
            says="Ties away from zero also takes numbers just below the tie",
            consequence="a reference value computed with it can be one level off",
            remedy="use nearest-even where the last bit of a float64 matters",
        ),
    ),
)
