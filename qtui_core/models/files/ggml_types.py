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
    number: GgmlType(*row)
    for number, row in {
        0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
        6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40),
        10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
        13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
        16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98),
        19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
        22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2),
        26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56),
        30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
        40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
    }.items()
}  # fmt: skip

BY_NAME = {kind.name: kind for kind in GGML_TYPES.values()}
