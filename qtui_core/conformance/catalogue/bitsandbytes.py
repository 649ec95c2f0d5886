"""Conventions of bitsandbytes, on the CPU. CUDA gives a block of zeros other bytes and breaks
ties of FP4 otherwise; the values are the same."""

from qtui_core.conformance.convention import Convention, KnownFault, Library, Verdict

BITSANDBYTES = Library(
    name="bitsandbytes",
    module="bitsandbytes",
    tested="0.50.2",
    conventions=(
        Convention(
            id="bitsandbytes.nf4-levels",
            says="NF4 has the 16 published levels, and not those a normal quantile gives",
            ours="nf4:block64",
            theirs='get_4bit_type("nf4")',
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="bitsandbytes.nf4",
            says="NF4 scales blocks of 64 of the flattened tensor by 1/absmax, takes the lower "
            "level on a tie, and packs the first element into the high four bits",
            ours="nf4:block64",
            theirs='quantize_4bit(x.flatten(), quant_type="nf4")',
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="bitsandbytes.nf4-bf16",
            says="A BF16 tensor gives the bytes of the same numbers in FP32",
            ours="nf4:block64",
            theirs='quantize_4bit(x.bfloat16().flatten(), quant_type="nf4")',
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="bitsandbytes.nf4-short",
            says="A short last block is divided by its absmax instead of multiplied by 1/absmax",
            ours="nf4:block64",
            theirs='quantize_4bit(x[:n], quant_type="nf4"), n from 1 to 4,097',
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="bitsandbytes.nf4-zero-block",
            says="A block of zeros has the code of 0, 7, everywhere; CUDA writes 0 instead, which "
            "the scale of 0 hides",
            ours="nf4:block64",
            theirs='quantize_4bit(torch.zeros(128), quant_type="nf4")',
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="bitsandbytes.nf4-nonfinite",
            says="A NaN or an infinity takes its whole block with it",
            ours="nf4:block64",
            theirs='quantize_4bit(x, quant_type="nf4") of x with NaN and infinities',
            expected=Verdict.DIFFERS,
            why="qtui leaves NaN and infinities out of the scale, so that the other 63 elements "
            "keep their values",
        ),
        Convention(
            id="bitsandbytes.fp4-levels",
            says="FP4 here is not OCP E2M1: its levels are 0, 1/192, 1/6, 1/4, 1/3, 1/2, 2/3, 1",
            ours="fp4:block64",
            theirs='get_4bit_type("fp4")',
            expected=Verdict.VALUE_EQUAL,
            why="the second zero is -0 here and 0 there",
        ),
        Convention(
            id="bitsandbytes.fp4",
            says="FP4 takes blocks of 64 of the flattened tensor, scaled by 1/absmax",
            ours="fp4:block64",
            theirs='quantize_4bit(x.flatten(), quant_type="fp4")',
            expected=Verdict.VALUE_EQUAL,
            why="the CPU, CUDA and qtui choose otherwise between its two codes of 0",
        ),
        Convention(
            id="bitsandbytes.nf4-dq",
            says="Double quantization stores absmax - mean(absmax) in 8 bits, 256 to a constant",
            ours="nf4:block64:dq",
            theirs='quantize_4bit(x, quant_type="nf4", compress_statistics=True)',
            expected=Verdict.DIFFERS,
            why="the CPU looks codes up in a uniform table and misses the nearest level for some; "
            "qtui takes the nearest one, as the CUDA kernel does",
        ),
        Convention(
            id="bitsandbytes.nf4-dq-read",
            says="Read with the codes and constants that qtui stores, the values are the same",
            ours="nf4:block64:dq",
            theirs="dequantize_4bit(packed, state) with the nested codes of qtui",
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="bitsandbytes.dynamic-map",
            says="The signed 8-bit dynamic map has the same 256 levels",
            ours="nf4:block64:dq",
            theirs="create_dynamic_map()",
            expected=Verdict.BYTE_EQUAL,
        ),
        Convention(
            id="bitsandbytes.8bit-blockwise",
            says="8-bit blockwise codes, as of optimizer states, are the nearest level of the map",
            ours="dynamic map, block256",
            theirs="quantize_blockwise(x, blocksize=256)",
            expected=Verdict.DIFFERS,
            why="the CPU looks codes up in a uniform table of 65,536 entries",
        ),
        Convention(
            id="bitsandbytes.int8-vectorwise",
            says="LLM.int8() keeps a row as round(x * (127 / absmax)), ties to even",
            ours="int8:row",
            theirs="int8_vectorwise_quant(x)",
            expected=Verdict.DIFFERS,
            why="127/absmax and 1/(absmax/127) are rounded otherwise, which shows on ties",
        ),
        Convention(
            id="bitsandbytes.int8-outliers",
            says="LLM.int8() keeps columns of activations with an element of 6 or more in 16 bits, "
            "and leaves those elements out of the scales of the rows",
            ours="int8:row:outliers6.0",
            theirs="int8_vectorwise_quant(x.half(), threshold=6.0)",
            expected=Verdict.BYTE_EQUAL,
        ),
    ),
    faults=(
        KnownFault(
            id="bitsandbytes.dequantize-matrix",
            says="dequantize_4bit of a matrix is silently wrong on this CPU when its last "
            "dimension is a multiple of 16 but not of the block",
            consequence="weights of such shapes come back scrambled, without an error",
            remedy="dequantize the flattened tensor, or keep rows a multiple of the block size",
        ),
        KnownFault(
            id="bitsandbytes.8bit-table",
            says="8-bit blockwise quantization on the CPU has no exact zero and misses the "
            "nearest level",
            consequence="8-bit Adam on the CPU moves parameters whose gradient is always zero",
            remedy="use 8-bit optimizers on CUDA only, and a 32-bit one on the CPU",
        ),
        KnownFault(
            id="bitsandbytes.linear4bit-repack",
            says="Linear4bit in eval mode reorders its packed weight on this CPU",
            consequence="a weight dequantized after the first forward pass is scrambled",
            remedy="look at quant_state.packing_format_for_cpu before dequantizing, or dequantize "
            "before the first forward pass",
        ),
        KnownFault(
            id="bitsandbytes.linear8bit-train",
            says="Linear8bitLt in training mode on the CPU quantizes no activations",
            consequence="it has neither the error nor the outlier columns of LLM.int8()",
            remedy="measure LLM.int8() in eval mode, or on CUDA",
        ),
        KnownFault(
            id="bitsandbytes.default-type",
            says="Linear4bit quantizes to its own FP4 unless told otherwise",
            consequence="bell-shaped weights have more error than NF4 gives them in the same bytes",
            remedy='pass quant_type="nf4" (bnb_4bit_quant_type in transformers)',
        ),
        KnownFault(
            id="bitsandbytes.flat-shape",
            says="A one-dimensional tensor comes back from dequantize_4bit with two dimensions",
            consequence="biases and norms broadcast where they should not",
            remedy="reshape the result to the shape of the original",
        ),
    ),
)
