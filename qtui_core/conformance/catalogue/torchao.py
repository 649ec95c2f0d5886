"""Conventions of torchao, on the CPU."""

from qtui_core.conformance.convention import Convention, KnownFault, Library, Verdict

_AFFINE = "choose_qparams_affine({}), quantize_affine"
_MX = "to_mx(x, {}, 32, ScaleCalculationMode.{})"


def _mx(name: str, element: str, rule: str, says: str) -> Convention:
    default = rule == "FLOOR"
    return Convention(
        id=f"torchao.{name}" if default else f"torchao.{name}-{rule.lower()}",
        says=says,
        ours=name if default else f"{name}:{rule.lower()}",
        theirs=_MX.format(element, rule),
        expected=Verdict.BYTE_EQUAL,
    )


TORCHAO = Library(
    name="torchao",
    module="torchao",
    tested="0.18.0",
    conventions=(
        Convention(
            id="torchao.int4",
            says="Symmetric INT4 asked for -7 to 7 has scale absmax/7",
            ours="int4:group64",
            theirs=_AFFINE.format("SYMMETRIC, (1, 64), -7, 7"),
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="torchao.int4-full",
            says="Symmetric INT4 as it comes has scale absmax/7.5 and codes from -8 to 7",
            ours="int4:group64:full",
            theirs=_AFFINE.format("SYMMETRIC, (1, 64), -8, 7"),
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="torchao.int4-bf16",
            says="Of a BF16 tensor the scale is computed and kept in BF16",
            ours="int4:group64",
            theirs=_AFFINE.format("x.bfloat16(), SYMMETRIC, (1, 64), -7, 7"),
            expected=Verdict.DIFFERS,
            why="qtui computes scales in FP32 whatever the tensor is; convert with .float() "
            "before quantizing to get the same",
        ),
        Convention(
            id="torchao.int4-nonfinite",
            says="A NaN or an infinity takes its whole group with it",
            ours="int4:group64",
            theirs=_AFFINE.format("SYMMETRIC, (1, 64), -7, 7") + " of x with NaN and infinities",
            expected=Verdict.DIFFERS,
            why="qtui leaves NaN and infinities out of the scale",
        ),
        Convention(
            id="torchao.short-group",
            says="A row that is no multiple of the group is refused",
            ours="int4:group64",
            theirs=_AFFINE.format("SYMMETRIC, (1, 64), -7, 7") + ", 100 columns",
            expected=Verdict.DIFFERS,
            why="qtui lets the last group of a row be short",
        ),
        Convention(
            id="torchao.int8-row",
            says="Symmetric INT8 per row, asked for -127 to 127, has scale absmax/127",
            ours="int8:row",
            theirs=_AFFINE.format("SYMMETRIC, (1, columns), -127, 127"),
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="torchao.int4-asym",
            says="Asymmetric INT4 makes the range include 0 and rounds before it adds the integer "
            "zero point",
            ours="int4:group64:asym",
            theirs=_AFFINE.format("ASYMMETRIC, (1, 64), 0, 15"),
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="torchao.int8-tensor-asym",
            says="Asymmetric INT8 per tensor, as of activations",
            ours="int8:tensor:asym",
            theirs=_AFFINE.format("ASYMMETRIC, x.shape, 0, 255"),
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="torchao.int4-tinygemm",
            says="The zero point of tinygemm is a number, and the range need not include 0",
            ours="int4:group64:asym:zpfloat",
            theirs="_choose_qparams_affine_tinygemm, _quantize_affine_tinygemm",
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="torchao.e4m3-tensor",
            says="E4M3 per tensor has scale absmax/448 and divides by it",
            ours="e4m3:tensor",
            theirs="_choose_scale_float8(x, x.shape), _quantize_affine_float8",
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="torchao.e4m3-row",
            says="E4M3 per row has scale absmax/448",
            ours="e4m3:row",
            theirs="_choose_scale_float8(x, (1, columns)), _quantize_affine_float8",
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="torchao.e4m3-zero-row",
            says="E4M3 of a row of zeros has scale 0 and gives NaN",
            ours="e4m3:row",
            theirs="_choose_scale_float8(x, (1, columns)) of rows of zeros",
            expected=Verdict.DIFFERS,
            why="qtui keeps scales at 2^-126 or above, so that zeros stay zeros",
        ),
        Convention(
            id="torchao.e5m2-tensor",
            says="E5M2 per tensor has scale absmax/57344",
            ours="e5m2:tensor",
            theirs="_choose_scale_float8(x, x.shape, float8_e5m2), _quantize_affine_float8",
            expected=Verdict.BYTE_EQUAL,
        ),
        _mx(
            "mxfp4",
            "float4_e2m1fn_x2",
            "FLOOR",
            "MXFP4 scales by 2^(floor(log2 absmax) - 2), and packs the first element into the low "
            "four bits",
        ),
        _mx("mxfp4", "float4_e2m1fn_x2", "CEIL", "MXFP4 with the logarithm rounded up"),
        _mx("mxfp4", "float4_e2m1fn_x2", "EVEN", "MXFP4 with absmax first rounded to one bit"),
        _mx("mxfp4", "float4_e2m1fn_x2", "RCEIL", "MXFP4 with the least scale that clips nothing"),
        _mx("mxfp6-e3m2", "fp6_e3m2", "FLOOR", "MXFP6 with E3M2 elements"),
        _mx("mxfp6-e2m3", "fp6_e2m3", "FLOOR", "MXFP6 with E2M3 elements"),
        _mx("mxfp8-e4m3", "float8_e4m3fn", "FLOOR", "MXFP8 with E4M3 elements saturates at 448"),
        _mx("mxfp8-e4m3", "float8_e4m3fn", "CEIL", "MXFP8 with the logarithm rounded up"),
        _mx("mxfp8-e4m3", "float8_e4m3fn", "EVEN", "MXFP8 with absmax first rounded to 3 bits"),
        _mx(
            "mxfp8-e4m3", "float8_e4m3fn", "RCEIL", "MXFP8 with the least scale that clips nothing"
        ),
        _mx("mxfp8-e5m2", "float8_e5m2", "FLOOR", "MXFP8 with E5M2 elements saturates at 57344"),
        Convention(
            id="torchao.nvfp4",
            says="NVFP4 keeps an E4M3 scale for 16 elements under one FP32 scale of absmax/2688",
            ours="nvfp4",
            theirs="NVFP4Tensor.to_nvfp4(x, per_tensor_scale=absmax/2688)",
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="torchao.nf4-levels",
            says="NF4Tensor has levels of four decimals",
            ours="nf4:block64",
            theirs="to_nf4(x, 64, 64).nf4",
            expected=Verdict.DIFFERS,
            why="qtui has the published levels to the last bit of FP32, as bitsandbytes",
        ),
        Convention(
            id="torchao.nf4",
            says="NF4Tensor keeps its scales in 8-bit integers and always quantizes them twice",
            ours="nf4:block64:dq",
            theirs="to_nf4(x, 64, 64)",
            expected=Verdict.DIFFERS,
            why="other levels, and scales in int8 instead of the 8-bit dynamic map: a checkpoint "
            "of one is not a checkpoint of the other",
        ),
        Convention(
            id="torchao.dynamic-map",
            says="8-bit optimizer states use the signed dynamic map of bitsandbytes",
            ours="nf4:block64:dq",
            theirs="optim.quant_utils.create_dynamic_map(signed=True)",
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="torchao.optimizer-8bit",
            says="8-bit optimizer states take the upper level on a tie",
            ours="dynamic map, block256",
            theirs="optim.quant_utils.quantize_8bit_with_qmap",
            expected=Verdict.DIFFERS,
            why="bitsandbytes and qtui take the lower one",
        ),
        Convention(
            id="torchao.bitnet",
            says="BitNet b1.58 weights are rounded to -1, 0, 1 under the mean magnitude",
            ours="ternary",
            theirs="get_bitnet_scale, quantize_bitnet_weight of whole numbers",
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="torchao.bitnet-mean",
            says="The mean magnitude is added up in FP32, and is at least 1e-5",
            ours="ternary",
            theirs="get_bitnet_scale, quantize_bitnet_weight",
            expected=Verdict.DIFFERS,
            why="qtui adds in FP64; the least scale is the same",
        ),
        Convention(
            id="torchao.bitnet-activations",
            says="Activations of BitNet and of INT8 training are INT8 per token, absmax/127",
            ours="int8:token",
            theirs="quantized_training.int8.quantize_int8_rowwise",
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="torchao.bf16-stochastic",
            says="Stochastic rounding to BF16 goes away from zero with the probability of the 16 "
            "bits that are dropped",
            ours="encode bf16 stochastic nosat",
            theirs="optim.quant_utils._fp32_to_bf16_sr, given the same draw",
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="torchao.per-row",
            says="PerRow(-1) names the dimension that is REDUCED: one scale for each row",
            ours="int8:row",
            theirs="get_block_size(x.shape, PerRow())",
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="torchao.per-axis",
            says="PerAxis(0) names the dimension that is KEPT: one scale for each row too",
            ours="int8:row",
            theirs="get_block_size(x.shape, PerAxis(0))",
            expected=Verdict.BYTE_EQUAL,
        ),
    ),
    faults=(
        KnownFault(
            id="torchao.float8-zero-row",
            says="float8 scaling by row turns a row of zeros into NaN",
            consequence="a pruned output channel or a padded token poisons all that it touches",
            remedy="give hp_value_lb (activation_value_lb in its configs), the least absmax, when "
            "quantizing to float8",
        ),
    ),
)
