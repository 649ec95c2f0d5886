"""Conventions of bitsandbytes on the CPU. CUDA writes other bytes for a block of zeros and breaks
ties of FP4 in another way; the values are the same."""

from qtui_core.conformance.convention import (
    BYTE_EQUAL,
    DIFFERS,
    VALUE_EQUAL,
    Convention,
    KnownFault,
    Library,
)

BITSANDBYTES = Library(
    name="bitsandbytes",
    module="bitsandbytes",
    tested="0.50.2",
    conventions=(
        Convention(
            "bitsandbytes.nf4-levels", "levels", BYTE_EQUAL, "nf4:block64", 'get_4bit_type("nf4")',
            "NF4 has the 16 published levels, and not those a normal quantile gives",
        ),
        Convention(
            "bitsandbytes.nf4", "nf4", BYTE_EQUAL, "nf4:block64",
            'quantize_4bit(x.flatten(), quant_type="nf4")',
            "NF4 scales blocks of 64 of the flattened tensor by 1/absmax, takes the lower level "
            "on a tie, and packs the first element into the high four bits",
        ),
        Convention(
            "bitsandbytes.nf4-bf16", "bf16_tensors", BYTE_EQUAL, "nf4:block64",
            'quantize_4bit(x.bfloat16().flatten(), quant_type="nf4")',
            "A BF16 tensor gives the bytes of the same numbers in FP32",
        ),
        Convention(
            "bitsandbytes.nf4-short", "short_blocks", BYTE_EQUAL, "nf4:block64",
            'quantize_4bit(x[:n], quant_type="nf4"), n from 1 to 4,097',
            "A short last block is divided by its absmax instead of multiplied by 1/absmax",
        ),
        Convention(
            "bitsandbytes.nf4-zero-block", "zero_blocks", BYTE_EQUAL, "nf4:block64",
            'quantize_4bit(torch.zeros(128), quant_type="nf4")',
            "A block of zeros has the code of 0, 7, everywhere; CUDA writes 0 instead, which the "
            "scale of 0 hides",
        ),
        Convention(
            "bitsandbytes.nf4-nonfinite", "nonfinite", DIFFERS, "nf4:block64",
            'quantize_4bit(x, quant_type="nf4") of x with NaN and infinities',
            "A NaN or an infinity takes its whole block with it",
            "qtui leaves NaN and infinities out of the scale, so that the other 63 elements keep "
            "their values",
        ),
        Convention(
            "bitsandbytes.fp4-levels", "levels", VALUE_EQUAL, "fp4:block64", 'get_4bit_type("fp4")',
            "FP4 here is not OCP E2M1: its levels are 0, 1/192, 1/6, 1/4, 1/3, 1/2, 2/3, 1",
            "the second zero is -0 here and 0 there",
        ),
        Convention(
            "bitsandbytes.fp4", "fp4", VALUE_EQUAL, "fp4:block64",
            'quantize_4bit(x.flatten(), quant_type="fp4")',
            "FP4 takes blocks of 64 of the flattened tensor, scaled by 1/absmax",
            "the CPU, CUDA and qtui choose otherwise between its two codes of 0",
        ),
        Convention(
            "bitsandbytes.nf4-dq", "double_quantization", DIFFERS, "nf4:block64:dq",
            'quantize_4bit(x, quant_type="nf4", compress_statistics=True)',
            "Double quantization stores absmax - mean(absmax) in 8 bits, 256 to a constant",
            "the CPU looks codes up in a uniform table and misses the nearest level for some; "
            "qtui takes the nearest one, as the CUDA kernel does",
        ),
        Convention(
            "bitsandbytes.nf4-dq-read", "read_nested", BYTE_EQUAL, "nf4:block64:dq",
            "dequantize_4bit(packed, state) with the nested codes of qtui",
            "Read with the codes and constants that qtui stores, the values are the same",
        ),
        Convention(
            "bitsandbytes.dynamic-map", "map_of_scales", BYTE_EQUAL, "nf4:block64:dq",
            "create_dynamic_map()",
            "The signed 8-bit dynamic map has the same 256 levels",
        ),
        Convention(
            "bitsandbytes.8bit-blockwise", "blockwise", DIFFERS, "dynamic map, block256",
            "quantize_blockwise(x, blocksize=256)",
            "8-bit blockwise codes, as of optimizer states, are the nearest level of the map",
            "the CPU looks codes up in a uniform table of 65,536 entries",
        ),
        Convention(
            "bitsandbytes.int8-vectorwise", "vectorwise", DIFFERS, "int8:row",
            "int8_vectorwise_quant(x)",
            "LLM.int8() keeps a row as round(x * (127 / absmax)), ties to even",
            "127/absmax and 1/(absmax/127) are rounded otherwise, which shows on ties",
        ),
        Convention(
            "bitsandbytes.int8-outliers", "outlier_columns", BYTE_EQUAL, "int8:row:outliers6.0",
            "int8_vectorwise_quant(x.half(), threshold=6.0)",
            "LLM.int8() keeps columns of activations with an element of 6 or more in 16 bits, and "
            "leaves those elements out of the scales of the rows",
        ),
    ),
    faults=(
        KnownFault(
            "bitsandbytes.dequantize-matrix", "dequantizes_matrices_wrongly",
            "dequantize_4bit of a matrix is silently wrong on this CPU when its last dimension is "
            "a multiple of 16 but not of the block",
            "weights of such shapes come back scrambled, without an error",
            "dequantize the flattened tensor, or keep rows a multiple of the block size",
        ),
        KnownFault(
            "bitsandbytes.8bit-table", "misses_zero",
            "8-bit blockwise quantization on the CPU has no exact zero and misses the nearest "
            "level",
            "8-bit Adam on the CPU moves parameters whose gradient is always zero",
            "use 8-bit optimizers on CUDA only, and a 32-bit one on the CPU",
        ),
        KnownFault(
            "bitsandbytes.linear4bit-repack", "repacks_weights",
            "Linear4bit in eval mode reorders its packed weight on this CPU",
            "a weight dequantized after the first forward pass is scrambled",
            "look at quant_state.packing_format_for_cpu before dequantizing, or dequantize before "
            "the first forward pass",
        ),
        KnownFault(
            "bitsandbytes.linear8bit-train", "trains_without_int8_activations",
            "Linear8bitLt in training mode on the CPU quantizes no activations",
            "it has neither the error nor the outlier columns of LLM.int8()",
            "measure LLM.int8() in eval mode, or on CUDA",
        ),
        KnownFault(
            "bitsandbytes.default-type", "defaults_to_fp4",
            "Linear4bit quantizes to its own FP4 unless told otherwise",
            "bell-shaped weights have more error than NF4 gives them in the same bytes",
            'pass quant_type="nf4" (bnb_4bit_quant_type in transformers)',
        ),
        KnownFault(
            "bitsandbytes.flat-shape", "adds_a_dimension",
            "A one-dimensional tensor comes back from dequantize_4bit with two dimensions",
            "biases and norms broadcast where they should not",
            "reshape the result to the shape of the original",
        ),
    ),
)  # fmt: skip
