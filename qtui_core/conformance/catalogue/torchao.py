"""Conventions of torchao, on the CPU."""

from qtui_core.conformance.convention import (
    BYTE_EQUAL,
    DIFFERS,
    Convention,
    KnownFault,
    Library,
)

_AFFINE = "choose_qparams_affine({}), quantize_affine"
_MX = "to_mx(x, {}, 32, ScaleCalculationMode.{})"


def _mx(name: str, element: str, rule: str, says: str) -> Convention:
    default = rule == "FLOOR"
    return Convention(
        f"torchao.{name}" if default else f"torchao.{name}-{rule.lower()}", "microscaling",
        BYTE_EQUAL, name if default else f"{name}:{rule.lower()}", _MX.format(element, rule), says,
    )  # fmt: skip


TORCHAO = Library(
    name="torchao",
    module="torchao",
    tested="0.18.0",
    conventions=(
        Convention(
            "torchao.int4", "affine", BYTE_EQUAL, "int4:group64",
            _AFFINE.format("SYMMETRIC, (1, 64), -7, 7"),
            "Symmetric INT4 asked for -7 to 7 has scale absmax/7",
        ),
        Convention(
            "torchao.int4-full", "affine", BYTE_EQUAL, "int4:group64:full",
            _AFFINE.format("SYMMETRIC, (1, 64), -8, 7"),
            "Symmetric INT4 as it comes has scale absmax/7.5 and codes from -8 to 7",
        ),
        Convention(
            "torchao.int4-bf16", "affine_of_bf16", DIFFERS, "int4:group64",
            _AFFINE.format("x.bfloat16(), SYMMETRIC, (1, 64), -7, 7"),
            "Of a BF16 tensor the scale is computed and kept in BF16",
            "qtui computes scales in FP32 whatever the tensor is; convert with .float() before "
            "quantizing to get the same",
        ),
        Convention(
            "torchao.int4-nonfinite", "affine_nonfinite", DIFFERS, "int4:group64",
            _AFFINE.format("SYMMETRIC, (1, 64), -7, 7") + " of x with NaN and infinities",
            "A NaN or an infinity takes its whole group with it",
            "qtui leaves NaN and infinities out of the scale",
        ),
        Convention(
            "torchao.short-group", "short_groups", DIFFERS, "int4:group64",
            _AFFINE.format("SYMMETRIC, (1, 64), -7, 7") + ", 100 columns",
            "A row that is no multiple of the group is refused",
            "qtui lets the last group of a row be short",
        ),
        Convention(
            "torchao.int8-row", "affine", BYTE_EQUAL, "int8:row",
            _AFFINE.format("SYMMETRIC, (1, columns), -127, 127"),
            "Symmetric INT8 per row, asked for -127 to 127, has scale absmax/127",
        ),
        Convention(
            "torchao.int4-asym", "affine", BYTE_EQUAL, "int4:group64:asym",
            _AFFINE.format("ASYMMETRIC, (1, 64), 0, 15"),
            "Asymmetric INT4 makes the range include 0 and rounds before it adds the integer zero "
            "point",
        ),
        Convention(
            "torchao.int8-tensor-asym", "affine", BYTE_EQUAL, "int8:tensor:asym",
            _AFFINE.format("ASYMMETRIC, x.shape, 0, 255"),
            "Asymmetric INT8 per tensor, as of activations",
        ),
        Convention(
            "torchao.int4-tinygemm", "tinygemm", BYTE_EQUAL, "int4:group64:asym:zpfloat",
            "_choose_qparams_affine_tinygemm, _quantize_affine_tinygemm",
            "The zero point of tinygemm is a number, and the range need not include 0",
        ),
        Convention(
            "torchao.e4m3-tensor", "float8", BYTE_EQUAL, "e4m3:tensor",
            "_choose_scale_float8(x, x.shape), _quantize_affine_float8",
            "E4M3 per tensor has scale absmax/448 and divides by it",
        ),
        Convention(
            "torchao.e4m3-row", "float8", BYTE_EQUAL, "e4m3:row",
            "_choose_scale_float8(x, (1, columns)), _quantize_affine_float8",
            "E4M3 per row has scale absmax/448",
        ),
        Convention(
            "torchao.e4m3-zero-row", "float8", DIFFERS, "e4m3:row",
            "_choose_scale_float8(x, (1, columns)) of rows of zeros",
            "E4M3 of a row of zeros has scale 0 and gives NaN",
            "qtui keeps scales at 2^-126 or above, so that zeros stay zeros",
        ),
        Convention(
            "torchao.e5m2-tensor", "float8", BYTE_EQUAL, "e5m2:tensor",
            "_choose_scale_float8(x, x.shape, float8_e5m2), _quantize_affine_float8",
            "E5M2 per tensor has scale absmax/57344",
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
            "torchao.nvfp4", "nvfp4", BYTE_EQUAL, "nvfp4",
            "NVFP4Tensor.to_nvfp4(x, per_tensor_scale=absmax/2688)",
            "NVFP4 keeps an E4M3 scale for 16 elements under one FP32 scale of absmax/2688",
        ),
        Convention(
            "torchao.nf4-levels", "nf4_levels", DIFFERS, "nf4:block64", "to_nf4(x, 64, 64).nf4",
            "NF4Tensor has levels of four decimals",
            "qtui has the published levels to the last bit of FP32, as bitsandbytes",
        ),
        Convention(
            "torchao.nf4", "nf4", DIFFERS, "nf4:block64:dq", "to_nf4(x, 64, 64)",
            "NF4Tensor keeps its scales in 8-bit integers and always quantizes them twice",
            "other levels, and scales in int8 instead of the 8-bit dynamic map: a checkpoint of "
            "one is not a checkpoint of the other",
        ),
        Convention(
            "torchao.dynamic-map", "map_of_optimizer_states", BYTE_EQUAL, "nf4:block64:dq",
            "optim.quant_utils.create_dynamic_map(signed=True)",
            "8-bit optimizer states use the signed dynamic map of bitsandbytes",
        ),
        Convention(
            "torchao.optimizer-8bit", "optimizer_states", DIFFERS, "dynamic map, block256",
            "optim.quant_utils.quantize_8bit_with_qmap",
            "8-bit optimizer states take the upper level on a tie",
            "bitsandbytes and qtui take the lower one",
        ),
        Convention(
            "torchao.bitnet", "ternary", BYTE_EQUAL, "ternary",
            "get_bitnet_scale, quantize_bitnet_weight of whole numbers",
            "BitNet b1.58 weights are rounded to -1, 0, 1 under the mean magnitude",
        ),
        Convention(
            "torchao.bitnet-mean", "ternary_mean", DIFFERS, "ternary",
            "get_bitnet_scale, quantize_bitnet_weight",
            "The mean magnitude is added up in FP32, and is at least 1e-5",
            "qtui adds in FP64; the least scale is the same",
        ),
        Convention(
            "torchao.bitnet-activations", "activations", BYTE_EQUAL, "int8:token",
            "quantized_training.int8.quantize_int8_rowwise",
            "Activations of BitNet and of INT8 training are INT8 per token, absmax/127",
        ),
        Convention(
            "torchao.bf16-stochastic", "stochastic", BYTE_EQUAL, "encode bf16 stochastic nosat",
            "optim.quant_utils._fp32_to_bf16_sr, given the same draw",
            "Stochastic rounding to BF16 goes away from zero with the probability of the 16 bits "
            "that are dropped",
        ),
        Convention(
            "torchao.per-row", "granularities", BYTE_EQUAL, "int8:row",
            "get_block_size(x.shape, PerRow())",
            "PerRow(-1) names the dimension that is REDUCED: one scale for each row",
        ),
        Convention(
            "torchao.per-axis", "granularities", BYTE_EQUAL, "int8:row",
            "get_block_size(x.shape, PerAxis(0))",
            "PerAxis(0) names the dimension that is KEPT: one scale for each row too",
        ),
    ),
    faults=(
        KnownFault(
            "torchao.float8-zero-row", "zero_rows_become_nan",
            "float8 scaling by row turns a row of zeros into NaN",
            "a pruned output channel or a padded token poisons all that it touches",
            "give hp_value_lb (activation_value_lb in its configs), the least absmax, when "
            "quantizing to float8",
        ),
    ),
)  # fmt: skip
