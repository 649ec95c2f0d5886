"""What each library is expected to do, as data. Standard library only.

All is on the CPU. On CUDA bitsandbytes writes other bytes for a block of zeros and breaks ties of
FP4 in another way; the values are the same.
"""

from __future__ import annotations

from qtui_core.conformance.convention import BYTE_EQUAL, DIFFERS, VALUE_EQUAL, Library, library
from qtui_core.conformance.convention import Convention as Row
from qtui_core.errors import UsageError
from qtui_core.formats import get_format

BITSANDBYTES = library(
    name="bitsandbytes",
    module="bitsandbytes",
    tested="0.50.2",
    conventions=(
        Row("nf4-levels", "levels", BYTE_EQUAL, "nf4:block64", 'get_4bit_type("nf4")',
            "NF4 has the 16 published levels, and not those a normal quantile gives"),
        Row("nf4", "blocks", BYTE_EQUAL, "nf4:block64",
            'quantize_4bit(x.flatten(), quant_type="nf4")',
            "NF4 scales blocks of 64 of the flattened tensor by 1/absmax, takes the lower level "
            "on a tie, and packs the first element into the high four bits"),
        Row("nf4-bf16", "bf16_tensors", BYTE_EQUAL, "nf4:block64",
            'quantize_4bit(x.bfloat16().flatten(), quant_type="nf4")',
            "A BF16 tensor gives the bytes of the same numbers in FP32"),
        Row("nf4-short", "short_blocks", BYTE_EQUAL, "nf4:block64",
            'quantize_4bit(x[:n], quant_type="nf4"), n from 1 to 4,097',
            "A short last block is divided by its absmax instead of multiplied by 1/absmax"),
        Row("nf4-zero-block", "blocks", BYTE_EQUAL, "nf4:block64",
            'quantize_4bit(torch.zeros(128), quant_type="nf4")',
            "A block of zeros has the code of 0, 7, everywhere; CUDA writes 0 instead, which "
            "the scale of 0 hides", numbers=("zeros",)),
        Row("nf4-nonfinite", "blocks", DIFFERS, "nf4:block64",
            'quantize_4bit(x, quant_type="nf4") of x with NaN and infinities',
            "A NaN or an infinity takes its whole block with it",
            "qtui leaves NaN and infinities out of the scale, so that the other 63 elements "
            "keep their values", numbers=("NaN and infinities",)),
        Row("nf4-matrix", "matrices", DIFFERS, "nf4:block64",
            "dequantize_4bit(*quantize_4bit(x)) of a matrix of 32 columns",
            "A matrix whose rows are no multiple of the block comes back scrambled, on the CPU and "
            "without an error",
            "dequantize the flattened tensor: its values are the same as qtui's"),
        Row("fp4-levels", "levels", VALUE_EQUAL, "fp4:block64", 'get_4bit_type("fp4")',
            "FP4 here is not OCP E2M1: its levels are 0, 1/192, 1/6, 1/4, 1/3, 1/2, 2/3, 1",
            "the second zero is -0 here and 0 there"),
        Row("fp4", "blocks", VALUE_EQUAL, "fp4:block64",
            'quantize_4bit(x.flatten(), quant_type="fp4")',
            "FP4 takes blocks of 64 of the flattened tensor, scaled by 1/absmax",
            "the CPU, CUDA and qtui choose otherwise between its two codes of 0"),
        Row("nf4-dq", "double_quantization", DIFFERS, "nf4:block64:dq",
            'quantize_4bit(x, quant_type="nf4", compress_statistics=True)',
            "Double quantization stores absmax - mean(absmax) in 8 bits, 256 to a constant",
            "the CPU looks codes up in a uniform table and misses the nearest level for some; "
            "qtui takes the nearest one, as the CUDA kernel does"),
        Row("nf4-dq-read", "read_nested", BYTE_EQUAL, "nf4:block64:dq",
            "dequantize_4bit(packed, state) with the nested codes of qtui",
            "Read with the codes and constants that qtui stores, the values are the same"),
        Row("dynamic-map", "map_of_scales", BYTE_EQUAL, "nf4:block64:dq", "create_dynamic_map()",
            "The signed 8-bit dynamic map has the same 256 levels"),
        Row("8bit-blockwise", "blockwise", DIFFERS, "dynamic map, block256",
            "quantize_blockwise(x, blocksize=256)",
            "8-bit blockwise codes, as of optimizer states, are the nearest level of the map",
            "the CPU looks codes up in a uniform table of 65,536 entries"),
        Row("int8-vectorwise", "vectorwise", DIFFERS, "int8:row", "int8_vectorwise_quant(x)",
            "LLM.int8() keeps a row as round(x * (127 / absmax)), ties to even",
            "127/absmax and 1/(absmax/127) are rounded otherwise, which shows on ties"),
        Row("int8-outliers", "outlier_columns", BYTE_EQUAL, "int8:row:outliers6.0",
            "int8_vectorwise_quant(x.half(), threshold=6.0)",
            "LLM.int8() keeps columns of activations with an element of 6 or more in 16 bits, "
            "and leaves those elements out of the scales of the rows"),
    ),
)  # fmt: skip


_AFFINE = "choose_qparams_affine({}), quantize_affine"
_NONZERO = ("normal", "ties", "one sided", "constant", "mixed magnitudes", "tiny", "huge")
_MX = "to_mx(x, {}, 32, ScaleCalculationMode.{})"


def _mx(name: str, element: str, rule: str, says: str) -> Row:
    own = name if rule == "FLOOR" else f"{name}-{rule.lower()}"
    text = name if rule == "FLOOR" else f"{name}:{rule.lower()}"
    return Row(own, "microscaling", BYTE_EQUAL, text, _MX.format(element, rule), says)


TORCHAO = library(
    name="torchao",
    module="torchao",
    tested="0.18.0",
    conventions=(
        Row("int4", "affine", BYTE_EQUAL, "int4:group64",
            _AFFINE.format("SYMMETRIC, (1, 64), -7, 7"),
            "Symmetric INT4 asked for -7 to 7 has scale absmax/7"),
        Row("int4-full", "affine", BYTE_EQUAL, "int4:group64:full",
            _AFFINE.format("SYMMETRIC, (1, 64), -8, 7"),
            "Symmetric INT4 as it comes has scale absmax/7.5 and codes from -8 to 7"),
        Row("int4-bf16", "affine_of_bf16", DIFFERS, "int4:group64",
            _AFFINE.format("x.bfloat16(), SYMMETRIC, (1, 64), -7, 7"),
            "Of a BF16 tensor the scale is computed and kept in BF16",
            "qtui computes scales in FP32 whatever the tensor is; convert with .float() before "
            "quantizing to get the same"),
        Row("int4-nonfinite", "affine", DIFFERS, "int4:group64",
            _AFFINE.format("SYMMETRIC, (1, 64), -7, 7") + " of x with NaN and infinities",
            "A NaN or an infinity takes its whole group with it",
            "qtui leaves NaN and infinities out of the scale", numbers=("NaN and infinities",)),
        Row("short-group", "affine", DIFFERS, "int4:group64",
            _AFFINE.format("SYMMETRIC, (1, 64), -7, 7") + ", 100 columns",
            "A row that is no multiple of the group is refused",
            "qtui lets the last group of a row be short", numbers=("rows of 100",)),
        Row("int8-row", "affine", BYTE_EQUAL, "int8:row",
            _AFFINE.format("SYMMETRIC, (1, columns), -127, 127"),
            "Symmetric INT8 per row, asked for -127 to 127, has scale absmax/127"),
        Row("int4-asym", "affine", BYTE_EQUAL, "int4:group64:asym",
            _AFFINE.format("ASYMMETRIC, (1, 64), 0, 15"),
            "Asymmetric INT4 makes the range include 0 and rounds before it adds the integer "
            "zero point"),
        Row("int8-tensor-asym", "affine", BYTE_EQUAL, "int8:tensor:asym",
            _AFFINE.format("ASYMMETRIC, x.shape, 0, 255"),
            "Asymmetric INT8 per tensor, as of activations"),
        Row("int4-tinygemm", "tinygemm", BYTE_EQUAL, "int4:group64:asym:zpfloat",
            "_choose_qparams_affine_tinygemm, _quantize_affine_tinygemm",
            "The zero point of tinygemm is a number, and the range need not include 0"),
        Row("e4m3-tensor", "float8", BYTE_EQUAL, "e4m3:tensor",
            "_choose_scale_float8(x, x.shape), _quantize_affine_float8",
            "E4M3 per tensor has scale absmax/448 and divides by it"),
        Row("e4m3-row", "float8", BYTE_EQUAL, "e4m3:row",
            "_choose_scale_float8(x, (1, columns)), _quantize_affine_float8",
            "E4M3 per row has scale absmax/448", numbers=_NONZERO),
        Row("e4m3-zero-row", "float8", DIFFERS, "e4m3:row",
            "_choose_scale_float8(x, (1, columns)) of rows of zeros",
            "E4M3 of a row of zeros has scale 0 and gives NaN",
            "qtui keeps scales at 2^-126 or above, so that zeros stay zeros",
            numbers=("zero groups",)),
        Row("e5m2-tensor", "float8", BYTE_EQUAL, "e5m2:tensor",
            "_choose_scale_float8(x, x.shape, float8_e5m2), _quantize_affine_float8",
            "E5M2 per tensor has scale absmax/57344"),
        _mx("mxfp4", "float4_e2m1fn_x2", "FLOOR",
            "MXFP4 scales by 2^(floor(log2 absmax) - 2), and packs the first element into the low "
            "four bits"),
        _mx("mxfp4", "float4_e2m1fn_x2", "CEIL", "MXFP4 with the logarithm rounded up"),
        _mx("mxfp4", "float4_e2m1fn_x2", "EVEN", "MXFP4 with absmax first rounded to one bit"),
        _mx("mxfp4", "float4_e2m1fn_x2", "RCEIL", "MXFP4 with the least scale that clips nothing"),
        _mx("mxfp6-e3m2", "fp6_e3m2", "FLOOR", "MXFP6 with E3M2 elements"),
        _mx("mxfp6-e2m3", "fp6_e2m3", "FLOOR", "MXFP6 with E2M3 elements"),
        _mx("mxfp8-e4m3", "float8_e4m3fn", "FLOOR", "MXFP8 with E4M3 elements saturates at 448"),
        _mx("mxfp8-e4m3", "float8_e4m3fn", "CEIL", "MXFP8 with the logarithm rounded up"),
        _mx("mxfp8-e4m3", "float8_e4m3fn", "EVEN", "MXFP8 with absmax first rounded to 3 bits"),
        _mx("mxfp8-e4m3", "float8_e4m3fn", "RCEIL",
            "MXFP8 with the least scale that clips nothing"),
        _mx("mxfp8-e5m2", "float8_e5m2", "FLOOR", "MXFP8 with E5M2 elements saturates at 57344"),
        Row("nvfp4", "nvfp4", BYTE_EQUAL, "nvfp4",
            "NVFP4Tensor.to_nvfp4(x, per_tensor_scale=absmax/2688)",
            "NVFP4 keeps an E4M3 scale for 16 elements under one FP32 scale of absmax/2688"),
        Row("nf4-levels", "nf4_levels", DIFFERS, "nf4:block64", "to_nf4(x, 64, 64).nf4",
            "NF4Tensor has levels of four decimals",
            "qtui has the published levels to the last bit of FP32, as bitsandbytes"),
        Row("nf4", "nf4", DIFFERS, "nf4:block64:dq", "to_nf4(x, 64, 64)",
            "NF4Tensor keeps its scales in 8-bit integers and always quantizes them twice",
            "other levels, and scales in int8 instead of the 8-bit dynamic map: a checkpoint of "
            "one is not a checkpoint of the other"),
        Row("dynamic-map", "map_of_optimizer_states", BYTE_EQUAL, "nf4:block64:dq",
            "optim.quant_utils.create_dynamic_map(signed=True)",
            "8-bit optimizer states use the signed dynamic map of bitsandbytes"),
        Row("optimizer-8bit", "optimizer_states", DIFFERS, "dynamic map, block256",
            "optim.quant_utils.quantize_8bit_with_qmap",
            "8-bit optimizer states take the upper level on a tie",
            "bitsandbytes and qtui take the lower one"),
        Row("bitnet", "ternary", BYTE_EQUAL, "ternary",
            "get_bitnet_scale, quantize_bitnet_weight of whole numbers",
            "BitNet b1.58 weights are rounded to -1, 0, 1 under the mean magnitude",
            numbers=("whole numbers",)),
        Row("bitnet-mean", "ternary", DIFFERS, "ternary",
            "get_bitnet_scale, quantize_bitnet_weight",
            "The mean magnitude is added up in FP32, and is at least 1e-5",
            "qtui adds in FP64; the least scale is the same"),
        Row("bitnet-activations", "activations", BYTE_EQUAL, "int8:token",
            "quantized_training.int8.quantize_int8_rowwise",
            "Activations of BitNet and of INT8 training are INT8 per token, absmax/127"),
        Row("bf16-stochastic", "stochastic", BYTE_EQUAL, "encode bf16 stochastic nosat",
            "optim.quant_utils._fp32_to_bf16_sr, given the same draw",
            "Stochastic rounding to BF16 goes away from zero with the probability of the 16 "
            "bits that are dropped"),
    ),
)  # fmt: skip


_QUANTIZE = "calculate_qparams, quantize with QuantizationArgs({})"

COMPRESSED_TENSORS = library(
    name="compressed-tensors",
    module="compressed_tensors",
    tested="0.20.0",
    conventions=(
        Row("int4-group", "schemes", DIFFERS, "int4:group64:full",
            _QUANTIZE.format('num_bits=4, strategy="group", group_size=64'),
            "Symmetric INT4 has scale absmax/7.5 and codes from -8 to 7",
            "the element of the largest magnitude lies on the tie at 7.5, and the last bit "
            "decides: it divides by the scale, qtui and torchao multiply by 1/scale"),
        Row("int8-channel", "schemes", DIFFERS, "int8:row:full",
            _QUANTIZE.format('num_bits=8, strategy="channel"'),
            "Symmetric INT8 per channel has scale absmax/127.5 and codes from -128 to 127",
            "it divides by the scale; qtui and torchao multiply by 1/scale"),
        Row("int4-asym", "schemes", DIFFERS, "int4:group64:asym",
            _QUANTIZE.format('num_bits=4, symmetric=False, strategy="group", group_size=64'),
            "Asymmetric INT4 adds the zero point before it rounds",
            "a tie goes the other way when the zero point is odd"),
        Row("int8-asym", "schemes", DIFFERS, "int8:tensor:asym",
            _QUANTIZE.format('num_bits=8, symmetric=False, strategy="tensor"'),
            "Asymmetric INT8 per tensor", "a tie goes the other way when the zero point is odd"),
        Row("fp8-tensor", "schemes", VALUE_EQUAL, "e4m3:tensor",
            _QUANTIZE.format('num_bits=8, type="float", strategy="tensor"'),
            "E4M3 per tensor has scale absmax/448",
            "adding the zero point, which is 0, takes the sign off -0"),
        Row("fp8-channel", "schemes", VALUE_EQUAL, "e4m3:row",
            _QUANTIZE.format('num_bits=8, type="float", strategy="channel"'),
            "E4M3 per channel has scale absmax/448",
            "adding the zero point, which is 0, takes the sign off -0"),
        Row("mxfp4", "schemes", VALUE_EQUAL, "mxfp4:even",
            _QUANTIZE.format('num_bits=4, type="float", group_size=32, scale_dtype=uint8'),
            "MXFP4 rounds absmax to one bit before it takes the exponent",
            "adding the zero point, which is 0, takes the sign off -0"),
        Row("mxfp8", "schemes", DIFFERS, "mxfp8-e4m3:even",
            _QUANTIZE.format('num_bits=8, type="float", group_size=32, scale_dtype=uint8'),
            "MXFP8 rounds absmax to ONE bit too, though its elements have three",
            "torchao and qtui round absmax to the three bits of the element"),
        Row("nvfp4", "schemes", DIFFERS, "nvfp4",
            _QUANTIZE.format('num_bits=4, type="float", strategy="tensor_group"'),
            "NVFP4 stores the reciprocal of the tensor's scale, 2688/absmax",
            "it lets scales of groups be subnormal and divides by them; qtui does as torchao, "
            "which keeps them normal and multiplies by the reciprocal"),
        Row("nonfinite", "schemes", DIFFERS, "int4:group64:full",
            _QUANTIZE.format('num_bits=4, strategy="group"') + ", x with NaN and infinities",
            "A NaN or an infinity takes its whole group with it",
            "qtui leaves NaN and infinities out of the scale",
            numbers=("NaN and infinities",)),
        Row("int4-packing", "packing", BYTE_EQUAL, "int4:group64:full", "pack_to_int32(codes, 4)",
            "INT4 codes, plus 8, are packed eight to an int32, the first into the lowest bits"),
        Row("short-group", "short_groups", DIFFERS, "int4:group64:full",
            _QUANTIZE.format('num_bits=4, strategy="group", group_size=64')
            + ", 100 columns", "A row that is no multiple of the group is refused",
            "qtui lets the last group of a row be short"),
    ),
)  # fmt: skip

GGUF = library(
    name="gguf",
    module="gguf",
    tested="0.19.0",
    conventions=(
        Row("q4_0", "q4_0", BYTE_EQUAL, "int4:group32:signed", "quants.quantize(x, Q4_0)",
            "Q4_0 divides the extreme element by -8, keeps that scale in FP16, and packs the "
            "first half of a block into the low four bits of its bytes"),
        Row("q5_0", "q5_0", BYTE_EQUAL, "int5:group32:signed", "quants.quantize(x, Q5_0)",
            "Q5_0 divides the extreme element by -16 and keeps the fifth bits apart"),
        Row("q8_0", "q8_0", DIFFERS, "int8:group32", "quants.quantize(x, Q8_0)",
            "Q8_0 has scale absmax/127 and rounds ties away from zero",
            "qtui rounds ties to even"),
        Row("q4_1", "q4_1", DIFFERS, "int4:group32:asym:zpfloat", "quants.quantize(x, Q4_1)",
            "Q4_1 keeps the minimum in FP16 instead of a zero point, and ties go up",
            "ties go up there and to even here, and its scale and minimum are FP16"),
        Row("mxfp4", "mxfp4", DIFFERS, "mxfp4", "quants.quantize(x, MXFP4)",
            "MXFP4 takes the first of the nearest levels on a tie",
            "a tie goes to the smaller code there and to the even one here"),
        Row("tq2_0", "ternary", DIFFERS, "ternary", "quants.quantize(x, TQ2_0)",
            "TQ2_0 scales 256 ternary elements by their absmax",
            "BitNet b1.58, and qtui with it, scales by the mean magnitude of the tensor: TQ2_0 "
            "is for weights that are ternary already"),
        Row("short-group", "short_blocks", DIFFERS, "int4:group32:signed",
            "quants.quantize(x, Q4_0), 100 columns", "A row that is no multiple of 32 is refused",
            "qtui lets the last group of a row be short"),
    ),
)  # fmt: skip


_OVERFLOW = {"saturate": "saturates", "nosat": "does not saturate"}


def _cast(name: str, dtype: str, limit: str = "nosat", since: str = "") -> Row:
    says = f"A cast to {get_format(name).title} rounds to nearest even and {_OVERFLOW[limit]}"
    text, theirs = f"encode {name} nearest-even {limit}", f"x.to(torch.{dtype})"
    return Row(name, "casts", BYTE_EQUAL, text, theirs, says, since=since)


TORCH = library(
    name="torch",
    module="torch",
    tested="2.13.0",
    conventions=(
        _cast("bf16", "bfloat16"),
        _cast("fp16", "float16"),
        _cast("e4m3", "float8_e4m3fn", "saturate", since="2.12"),
        _cast("e5m2", "float8_e5m2"),
        _cast("e4m3fnuz", "float8_e4m3fnuz"),
        _cast("e5m2fnuz", "float8_e5m2fnuz"),
        Row("e8m0", "casts", BYTE_EQUAL, "encode e8m0 nearest-even nosat",
            "x.to(torch.float8_e8m0fnu)",
            "A cast of normal numbers to E8M0 rounds to the nearest power of two",
            numbers=("positive BF16, infinity",)),
        Row("e8m0-smallest", "casts", DIFFERS, "encode e8m0 nearest-even saturate",
            "x.to(torch.float8_e8m0fnu)",
            "Next to the smallest E8M0, 2^-127, a cast takes the farther power of two",
            "numbers just above 2^-127 become 2^-126, though 2^-127 is nearer",
            numbers=("subnormal BF16",)),
        Row("e8m0-zero", "casts", BYTE_EQUAL, "encode e8m0 nearest-even saturate",
            "torch.zeros(1).to(torch.float8_e8m0fnu)",
            "Zero, which E8M0 does not have, becomes 2^-127", numbers=("zero",)),
        Row("e5m2-nan", "casts", VALUE_EQUAL, "encode e5m2 nearest-even nosat",
            "x.to(torch.float8_e5m2)", "NaN becomes 0x7F in E5M2",
            "E5M2 has three NaN codes; qtui writes 0x7E", numbers=("NaN",)),
    ),
)  # fmt: skip

LIBRARIES: tuple[Library, ...] = (BITSANDBYTES, TORCHAO, COMPRESSED_TENSORS, GGUF, TORCH)


def find_library(name: str) -> Library:
    """The library of that name, in any case, with "-" or "_" between its words.

    Raises UsageError, which names all libraries.
    """
    by_name = {library.name.replace("_", "-"): library for library in LIBRARIES}
    wanted = by_name.get(name.strip().lower().replace("_", "-"))
    if wanted is None:
        known = ", ".join(by_name)
        raise UsageError(f"No conventions of a library {name!r} are known here; known are {known}.")
    return wanted
