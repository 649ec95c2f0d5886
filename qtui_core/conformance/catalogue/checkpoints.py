"""Conventions of the libraries that read and write quantized checkpoints."""

from qtui_core.conformance.convention import Convention, KnownFault, Library, Verdict

_QUANTIZE = "calculate_qparams, quantize with QuantizationArgs({})"

COMPRESSED_TENSORS = Library(
    name="compressed-tensors",
    module="compressed_tensors",
    tested="0.20.0",
    conventions=(
        Convention(
            id="compressed-tensors.int4-group",
            says="Symmetric INT4 has scale absmax/7.5 and codes from -8 to 7",
            ours="int4:group64:full",
            theirs=_QUANTIZE.format('num_bits=4, strategy="group", group_size=64'),
            expected=Verdict.DIFFERS,
            why="the element of the largest magnitude lies on the tie at 7.5, and the last bit "
            "decides: it divides by the scale, qtui and torchao multiply by 1/scale",
        ),
        Convention(
            id="compressed-tensors.int8-channel",
            says="Symmetric INT8 per channel has scale absmax/127.5 and codes from -128 to 127",
            ours="int8:row:full",
            theirs=_QUANTIZE.format('num_bits=8, strategy="channel"'),
            expected=Verdict.DIFFERS,
            why="it divides by the scale; qtui and torchao multiply by 1/scale",
        ),
        Convention(
            id="compressed-tensors.int4-asym",
            says="Asymmetric INT4 adds the zero point before it rounds",
            ours="int4:group64:asym",
            theirs=_QUANTIZE.format('num_bits=4, symmetric=False, strategy="group", group_size=64'),
            expected=Verdict.DIFFERS,
            why="a tie goes the other way when the zero point is odd",
        ),
        Convention(
            id="compressed-tensors.int8-asym",
            says="Asymmetric INT8 per tensor",
            ours="int8:tensor:asym",
            theirs=_QUANTIZE.format('num_bits=8, symmetric=False, strategy="tensor"'),
            expected=Verdict.DIFFERS,
            why="a tie goes the other way when the zero point is odd",
        ),
        Convention(
            id="compressed-tensors.fp8-tensor",
            says="E4M3 per tensor has scale absmax/448",
            ours="e4m3:tensor",
            theirs=_QUANTIZE.format('num_bits=8, type="float", strategy="tensor"'),
            expected=Verdict.VALUE_EQUAL,
            why="adding the zero point, which is 0, takes the sign off -0",
        ),
        Convention(
            id="compressed-tensors.fp8-channel",
            says="E4M3 per channel has scale absmax/448",
            ours="e4m3:row",
            theirs=_QUANTIZE.format('num_bits=8, type="float", strategy="channel"'),
            expected=Verdict.VALUE_EQUAL,
            why="adding the zero point, which is 0, takes the sign off -0",
        ),
        Convention(
            id="compressed-tensors.mxfp4",
            says="MXFP4 rounds absmax to one bit before it takes the exponent",
            ours="mxfp4:even",
            theirs=_QUANTIZE.format('num_bits=4, type="float", group_size=32, scale_dtype=uint8'),
            expected=Verdict.VALUE_EQUAL,
            why="adding the zero point, which is 0, takes the sign off -0",
        ),
        Convention(
            id="compressed-tensors.mxfp8",
            says="MXFP8 rounds absmax to ONE bit too, though its elements have three",
            ours="mxfp8-e4m3:even",
            theirs=_QUANTIZE.format('num_bits=8, type="float", group_size=32, scale_dtype=uint8'),
            expected=Verdict.DIFFERS,
            why="torchao and qtui round absmax to the three bits of the element",
        ),
        Convention(
            id="compressed-tensors.nvfp4",
            says="NVFP4 stores the reciprocal of the tensor's scale, 2688/absmax",
            ours="nvfp4",
            theirs=_QUANTIZE.format('num_bits=4, type="float", strategy="tensor_group"'),
            expected=Verdict.DIFFERS,
            why="it lets scales of groups be subnormal and divides by them; qtui does as torchao, "
            "which keeps them normal and multiplies by the reciprocal",
        ),
        Convention(
            id="compressed-tensors.nonfinite",
            says="A NaN or an infinity takes its whole group with it",
            ours="int4:group64:full",
            theirs=_QUANTIZE.format('num_bits=4, strategy="group"') + ", x with NaN and infinities",
            expected=Verdict.DIFFERS,
            why="qtui leaves NaN and infinities out of the scale",
        ),
        Convention(
            id="compressed-tensors.int4-packing",
            says="INT4 codes, plus 8, are packed eight to an int32, the first into the lowest bits",
            ours="int4:group64:full",
            theirs="pack_to_int32(codes, 4)",
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="compressed-tensors.short-group",
            says="A row that is no multiple of the group is refused",
            ours="int4:group64:full",
            theirs=_QUANTIZE.format('num_bits=4, strategy="group", group_size=64')
            + ", 100 columns",
            expected=Verdict.DIFFERS,
            why="qtui lets the last group of a row be short",
        ),
    ),
)

GGUF = Library(
    name="gguf",
    module="gguf",
    tested="0.19.0",
    conventions=(
        Convention(
            id="gguf.q4_0",
            says="Q4_0 divides the extreme element by -8, keeps that scale in FP16, and packs the "
            "first half of a block into the low four bits of its bytes",
            ours="int4:group32:signed",
            theirs="quants.quantize(x, Q4_0)",
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="gguf.q5_0",
            says="Q5_0 divides the extreme element by -16 and keeps the fifth bits apart",
            ours="int5:group32:signed",
            theirs="quants.quantize(x, Q5_0)",
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="gguf.q8_0",
            says="Q8_0 has scale absmax/127 and rounds ties away from zero",
            ours="int8:group32",
            theirs="quants.quantize(x, Q8_0)",
            expected=Verdict.DIFFERS,
            why="qtui rounds ties to even",
        ),
        Convention(
            id="gguf.q4_1",
            says="Q4_1 keeps the minimum in FP16 instead of a zero point, and ties go up",
            ours="int4:group32:asym:zpfloat",
            theirs="quants.quantize(x, Q4_1)",
            expected=Verdict.DIFFERS,
            why="ties go up there and to even here, and its scale and minimum are FP16",
        ),
        Convention(
            id="gguf.mxfp4",
            says="MXFP4 takes the first of the nearest levels on a tie",
            ours="mxfp4",
            theirs="quants.quantize(x, MXFP4)",
            expected=Verdict.DIFFERS,
            why="a tie goes to the smaller code there and to the even one here",
        ),
        Convention(
            id="gguf.tq2_0",
            says="TQ2_0 scales 256 ternary elements by their absmax",
            ours="ternary",
            theirs="quants.quantize(x, TQ2_0)",
            expected=Verdict.DIFFERS,
            why="BitNet b1.58, and qtui with it, scales by the mean magnitude of the tensor: "
            "TQ2_0 is for weights that are ternary already",
        ),
        Convention(
            id="gguf.short-group",
            says="A row that is no multiple of 32 is refused",
            ours="int4:group32:signed",
            theirs="quants.quantize(x, Q4_0), 100 columns",
            expected=Verdict.DIFFERS,
            why="qtui lets the last group of a row be short",
        ),
        Convention(
            id="gguf.bf16",
            says="BF16 rounds to nearest even",
            ours="encode bf16 nearest-even nosat",
            theirs="quants.quantize(x, BF16)",
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="gguf.f16",
            says="F16 rounds to nearest even and overflows to infinity",
            ours="encode fp16 nearest-even nosat",
            theirs="quants.quantize(x, F16)",
            expected=Verdict.BYTE_EQUAL,
        ),
    ),
    faults=(
        KnownFault(
            id="gguf.mxfp4-scale",
            says="MXFP4 takes its logarithm in floating point, which is wrong just below powers of "
            "two",
            consequence="a block whose largest element lies there has twice the scale it should "
            "have, and one bit less",
            remedy="round the tensor to BF16 first, which has no such numbers",
        ),
    ),
)
