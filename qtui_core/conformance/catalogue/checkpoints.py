"""Conventions of the libraries that read and write quantized checkpoints."""

from qtui_core.conformance.convention import (
    BYTE_EQUAL,
    DIFFERS,
    VALUE_EQUAL,
    Convention,
    KnownFault,
    Library,
)

_QUANTIZE = "calculate_qparams, quantize with QuantizationArgs({})"

COMPRESSED_TENSORS = Library(
    name="compressed-tensors",
    module="compressed_tensors",
    tested="0.20.0",
    conventions=(
        Convention(
            "compressed-tensors.int4-group", "schemes", DIFFERS, "int4:group64:full",
            _QUANTIZE.format('num_bits=4, strategy="group", group_size=64'),
            "Symmetric INT4 has scale absmax/7.5 and codes from -8 to 7",
            "the element of the largest magnitude lies on the tie at 7.5, and the last bit "
            "decides: it divides by the scale, qtui and torchao multiply by 1/scale",
        ),
        Convention(
            "compressed-tensors.int8-channel", "schemes", DIFFERS, "int8:row:full",
            _QUANTIZE.format('num_bits=8, strategy="channel"'),
            "Symmetric INT8 per channel has scale absmax/127.5 and codes from -128 to 127",
            "it divides by the scale; qtui and torchao multiply by 1/scale",
        ),
        Convention(
            "compressed-tensors.int4-asym", "schemes", DIFFERS, "int4:group64:asym",
            _QUANTIZE.format('num_bits=4, symmetric=False, strategy="group", group_size=64'),
            "Asymmetric INT4 adds the zero point before it rounds",
            "a tie goes the other way when the zero point is odd",
        ),
        Convention(
            "compressed-tensors.int8-asym", "schemes", DIFFERS, "int8:tensor:asym",
            _QUANTIZE.format('num_bits=8, symmetric=False, strategy="tensor"'),
            "Asymmetric INT8 per tensor",
            "a tie goes the other way when the zero point is odd",
        ),
        Convention(
            "compressed-tensors.fp8-tensor", "schemes", VALUE_EQUAL, "e4m3:tensor",
            _QUANTIZE.format('num_bits=8, type="float", strategy="tensor"'),
            "E4M3 per tensor has scale absmax/448",
            "adding the zero point, which is 0, takes the sign off -0",
        ),
        Convention(
            "compressed-tensors.fp8-channel", "schemes", VALUE_EQUAL, "e4m3:row",
            _QUANTIZE.format('num_bits=8, type="float", strategy="channel"'),
            "E4M3 per channel has scale absmax/448",
            "adding the zero point, which is 0, takes the sign off -0",
        ),
        Convention(
            "compressed-tensors.mxfp4", "schemes", VALUE_EQUAL, "mxfp4:even",
            _QUANTIZE.format('num_bits=4, type="float", group_size=32, scale_dtype=uint8'),
            "MXFP4 rounds absmax to one bit before it takes the exponent",
            "adding the zero point, which is 0, takes the sign off -0",
        ),
        Convention(
            "compressed-tensors.mxfp8", "schemes", DIFFERS, "mxfp8-e4m3:even",
            _QUANTIZE.format('num_bits=8, type="float", group_size=32, scale_dtype=uint8'),
            "MXFP8 rounds absmax to ONE bit too, though its elements have three",
            "torchao and qtui round absmax to the three bits of the element",
        ),
        Convention(
            "compressed-tensors.nvfp4", "schemes", DIFFERS, "nvfp4",
            _QUANTIZE.format('num_bits=4, type="float", strategy="tensor_group"'),
            "NVFP4 stores the reciprocal of the tensor's scale, 2688/absmax",
            "it lets scales of groups be subnormal and divides by them; qtui does as torchao, "
            "which keeps them normal and multiplies by the reciprocal",
        ),
        Convention(
            "compressed-tensors.nonfinite", "nonfinite", DIFFERS, "int4:group64:full",
            _QUANTIZE.format('num_bits=4, strategy="group"') + ", x with NaN and infinities",
            "A NaN or an infinity takes its whole group with it",
            "qtui leaves NaN and infinities out of the scale",
        ),
        Convention(
            "compressed-tensors.int4-packing", "packing", BYTE_EQUAL, "int4:group64:full",
            "pack_to_int32(codes, 4)",
            "INT4 codes, plus 8, are packed eight to an int32, the first into the lowest bits",
        ),
        Convention(
            "compressed-tensors.short-group", "short_groups", DIFFERS, "int4:group64:full",
            _QUANTIZE.format('num_bits=4, strategy="group", group_size=64')
            + ", 100 columns",
            "A row that is no multiple of the group is refused",
            "qtui lets the last group of a row be short",
        ),
    ),
)  # fmt: skip

GGUF = Library(
    name="gguf",
    module="gguf",
    tested="0.19.0",
    conventions=(
        Convention(
            "gguf.q4_0", "q4_0", BYTE_EQUAL, "int4:group32:signed", "quants.quantize(x, Q4_0)",
            "Q4_0 divides the extreme element by -8, keeps that scale in FP16, and packs the "
            "first half of a block into the low four bits of its bytes",
        ),
        Convention(
            "gguf.q5_0", "q5_0", BYTE_EQUAL, "int5:group32:signed", "quants.quantize(x, Q5_0)",
            "Q5_0 divides the extreme element by -16 and keeps the fifth bits apart",
        ),
        Convention(
            "gguf.q8_0", "q8_0", DIFFERS, "int8:group32", "quants.quantize(x, Q8_0)",
            "Q8_0 has scale absmax/127 and rounds ties away from zero",
            "qtui rounds ties to even",
        ),
        Convention(
            "gguf.q4_1", "q4_1", DIFFERS, "int4:group32:asym:zpfloat", "quants.quantize(x, Q4_1)",
            "Q4_1 keeps the minimum in FP16 instead of a zero point, and ties go up",
            "ties go up there and to even here, and its scale and minimum are FP16",
        ),
        Convention(
            "gguf.mxfp4", "mxfp4", DIFFERS, "mxfp4", "quants.quantize(x, MXFP4)",
            "MXFP4 takes the first of the nearest levels on a tie",
            "a tie goes to the smaller code there and to the even one here",
        ),
        Convention(
            "gguf.tq2_0", "ternary", DIFFERS, "ternary", "quants.quantize(x, TQ2_0)",
            "TQ2_0 scales 256 ternary elements by their absmax",
            "BitNet b1.58, and qtui with it, scales by the mean magnitude of the tensor: TQ2_0 is "
            "for weights that are ternary already",
        ),
        Convention(
            "gguf.short-group", "short_blocks", DIFFERS, "int4:group32:signed",
            "quants.quantize(x, Q4_0), 100 columns",
            "A row that is no multiple of 32 is refused",
            "qtui lets the last group of a row be short",
        ),
        Convention(
            "gguf.bf16", "bf16", BYTE_EQUAL, "encode bf16 nearest-even nosat",
            "quants.quantize(x, BF16)",
            "BF16 rounds to nearest even",
        ),
        Convention(
            "gguf.f16", "f16", BYTE_EQUAL, "encode fp16 nearest-even nosat",
            "quants.quantize(x, F16)",
            "F16 rounds to nearest even and overflows to infinity",
        ),
    ),
    faults=(
        KnownFault(
            "gguf.mxfp4-scale", "takes_logarithms_in_floating_point",
            "MXFP4 takes its logarithm in floating point, which is wrong just below powers of two",
            "a block whose largest element lies there has twice the scale it should have, and one "
            "bit less",
            "round the tensor to BF16 first, which has no such numbers",
        ),
    ),
)  # fmt: skip
