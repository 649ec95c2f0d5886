"""The number formats of GGUF files: how many elements share a block, and its bytes.

Source: `GGML_QUANT_SIZES` of gguf 0.19 and `ggml-common.h` of llama.cpp, which it mirrors.
"""

from __future__ import annotations

from qtui_core.dataclass import dataclass
from qtui_core.models.tensors import DTYPE_BITS


@dataclass(frozen=True)
class GgmlType:
    """Attributes:
    name: what llama.cpp calls it; for plain numbers the safetensors tag, which is the same.
    block: elements of a row that share scales; rows are whole blocks.
    nbytes: bytes of one block.
    """

    name: str
    block: int
    nbytes: int

    @property
    def is_plain(self) -> bool:
        """Numbers stored as they are, without a scale."""
        return self.name in DTYPE_BITS

    @property
    def is_known_to_gguf(self) -> bool:
        """Whether the gguf library has code to decode it."""
        return self.name not in _UNDECODED


_UNDECODED = frozenset({"Q8_1", "Q8_K", "Q1_0"})

#: By the number that stands for the type in a file. 4, 5 and 31 to 38 were given up.
GGML_TYPES = {
    0: GgmlType("F32", 1, 4),
    1: GgmlType("F16", 1, 2),
    2: GgmlType("Q4_0", 32, 18),
    3: GgmlType("Q4_1", 32, 20),
    6: GgmlType("Q5_0", 32, 22),
    7: GgmlType("Q5_1", 32, 24),
    8: GgmlType("Q8_0", 32, 34),
    9: GgmlType("Q8_1", 32, 40),
    10: GgmlType("Q2_K", 256, 84),
    11: GgmlType("Q3_K", 256, 110),
    12: GgmlType("Q4_K", 256, 144),
    13: GgmlType("Q5_K", 256, 176),
    14: GgmlType("Q6_K", 256, 210),
    15: GgmlType("Q8_K", 256, 292),
    16: GgmlType("IQ2_XXS", 256, 66),
    17: GgmlType("IQ2_XS", 256, 74),
    18: GgmlType("IQ3_XXS", 256, 98),
    19: GgmlType("IQ1_S", 256, 50),
    20: GgmlType("IQ4_NL", 32, 18),
    21: GgmlType("IQ3_S", 256, 110),
    22: GgmlType("IQ2_S", 256, 82),
    23: GgmlType("IQ4_XS", 256, 136),
    24: GgmlType("I8", 1, 1),
    25: GgmlType("I16", 1, 2),
    26: GgmlType("I32", 1, 4),
    27: GgmlType("I64", 1, 8),
    28: GgmlType("F64", 1, 8),
    29: GgmlType("IQ1_M", 256, 56),
    30: GgmlType("BF16", 1, 2),
    34: GgmlType("TQ1_0", 256, 54),
    35: GgmlType("TQ2_0", 256, 66),
    39: GgmlType("MXFP4", 32, 17),
    40: GgmlType("NVFP4", 64, 36),
    41: GgmlType("Q1_0", 128, 18),
}

BY_NAME = {kind.name: kind for kind in GGML_TYPES.values()}
