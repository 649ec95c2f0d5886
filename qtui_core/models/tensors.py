"""What is known of a tensor before reading it."""

from __future__ import annotations

import math
from enum import StrEnum

from qtui_core.dataclass import dataclass

#: Bits of one element by safetensors dtype tag (safetensors 0.8, `Dtype::bitsize`).
DTYPE_BITS = {
    "F64": 64,
    "F32": 32,
    "F16": 16,
    "BF16": 16,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F4": 4,
    "C64": 64,
    "I64": 64,
    "I32": 32,
    "I16": 16,
    "I8": 8,
    "U64": 64,
    "U32": 32,
    "U16": 16,
    "U8": 8,
    "BOOL": 8,
}

#: Listed and size-checked, but not read: elements that share a byte, and complex numbers.
UNREAD_DTYPES = frozenset({"F6_E2M3", "F6_E3M2", "F4", "C64"})

READABLE_DTYPES = frozenset(DTYPE_BITS) - UNREAD_DTYPES


class Role(StrEnum):
    """What the stored elements of a tensor mean."""

    #: The parameters themselves.
    VALUES = "values"
    #: Codes of a quantization; they become parameters only together with their scales.
    CODES = "codes"
    #: Scales, zero points, codebooks and the like, which belong to codes.
    SCALES = "scales"


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a checkpoint, as its header describes it.

    Attributes:
        name: as stored; data, so quote or escape it before printing.
        dtype: safetensors tag, for instance "BF16". May be one that is not known here.
        shape: dimensions; () is a scalar.
        parameters: how many parameters of the model this tensor stands for. The product of
            `shape` for plain values; for packed codes the number of weights they unpack to,
            where names and shapes tell; 0 for scales, which are cost, not parameters.
        nbytes: bytes in the file.
        file: the file it is in, relative to the model.
        begin, end: byte positions in that file.
        readable: whether `read_rows` and the arrays read it.
        role: what the elements mean.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    parameters: int
    nbytes: int
    file: str
    begin: int
    end: int
    readable: bool
    role: Role = Role.VALUES

    @property
    def elements(self) -> int:
        """Stored elements: the product of the shape."""
        return math.prod(self.shape)


def rows_of(info: TensorInfo) -> int:
    """Rows of a tensor, one for each output channel: d0 of a matrix [d0, d1], d0 × d1 of
    stacked matrices [d0, d1, d2] (fused experts), d0 of a convolution [d0, d1, d2, d3, …]. A
    vector has one row per element, a scalar one row."""
    return math.prod(info.shape[: _leading_dimensions(info)])


def row_elements(info: TensorInfo) -> int:
    """Elements of one row, the product of the dimensions that `rows_of` leaves: 1 for
    vectors."""
    return math.prod(info.shape[_leading_dimensions(info) :])


def _leading_dimensions(info: TensorInfo) -> int:
    return 2 if len(info.shape) == 3 else 1
