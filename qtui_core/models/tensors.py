"""What is known of a tensor before reading it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any

from qtui_core.dataclass import dataclass

#: The key under which a configuration that was not read from a config.json names its origin:
#: "GGUF metadata".
DESCRIBED_IN = "_described_in"

#: Bits of one element by safetensors dtype tag (safetensors 0.8, `Dtype::bitsize`).
DTYPE_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F8_E8M0": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4, "C64": 64,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip

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


class Reading(StrEnum):
    """How a tensor is seen as a matrix, whose rows are the output channels."""

    #: One or no dimension: one row.
    VECTOR = "vector"
    #: `[out, in]`.
    MATRIX = "matrix"
    #: `[count, out, in]`, fused experts for example: `[count * out, in]`.
    STACK = "stacked matrices"
    #: `[out, in, k, …]`: `[out, in * k * …]`.
    CONVOLUTION = "convolution"


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
        stacked: whether three dimensions are known to be stacked matrices, or not to be; None
            where name and shape have to tell.
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
    stacked: bool | None = None

    @property
    def reading(self) -> Reading:
        """How its dimensions become rows and columns."""
        if len(self.shape) < 3:
            return Reading.MATRIX if len(self.shape) == 2 else Reading.VECTOR
        stacked = _looks_stacked(self.name, self.shape) if self.stacked is None else self.stacked
        return Reading.STACK if stacked and len(self.shape) == 3 else Reading.CONVOLUTION

    @property
    def matrix(self) -> tuple[int, int]:
        """`[rows, columns]` as quantization sees them; of a vector `[1, n]`."""
        if self.reading is Reading.VECTOR:
            return 1, self.elements
        return rows_of(self), row_elements(self)

    @property
    def elements(self) -> int:
        """Stored elements: the product of the shape."""
        return math.prod(self.shape)


def rows_of(info: TensorInfo) -> int:
    """Rows of a tensor, one for each output channel: d0 of a matrix [d0, d1], d0 × d1 of
    stacked matrices [d0, d1, d2] (fused experts), d0 of a convolution [d0, d1, d2, …]. A
    vector has one row per element, a scalar one row."""
    return math.prod(info.shape[: _leading_dimensions(info)])


def row_elements(info: TensorInfo) -> int:
    """Elements of one row, the product of the dimensions that `rows_of` leaves: 1 for
    vectors."""
    return math.prod(info.shape[_leading_dimensions(info) :])


def with_stacks(
    tensors: Mapping[str, TensorInfo], config: Mapping[str, Any] | None
) -> dict[str, TensorInfo]:
    """Marks fused experts `[experts, out, in]` as stacked matrices: tensors whose first of three
    dimensions is a number of experts in the config, unless their name is that of a convolution."""
    counts = _expert_counts(config or {})
    return {
        name: replace(info, stacked=True)
        if len(info.shape) == 3 and info.shape[0] in counts and not _CONVOLUTIONS.search(name)
        else info
        for name, info in tensors.items()
    }


#: Names that modules give to kernels of convolutions: conv1d (Mamba), conv1 (Whisper), dwconv,
#: pos_conv_embed (wav2vec 2.0), patch_embed and patch_embedding (vision towers).
_CONVOLUTIONS = re.compile(r"conv|patch_embed", re.IGNORECASE)
#: Names of fused experts: mlp.experts.gate_up_proj, and ffn_gate_exps in GGUF files.
_STACKS = re.compile(r"expert|_exps\b", re.IGNORECASE)
#: Keys of a config that count the experts a router chooses from, and not those always at work.
_EXPERTS = re.compile(r"(?!.*shared)\w*n(um)?_\w*experts")
#: Kernels of one dimension are seldom longer, and matrices of a model seldom as narrow.
_LONGEST_KERNEL = 32


def _looks_stacked(name: str, shape: tuple[int, ...]) -> bool:
    """Whether three dimensions are stacked matrices, by the name, and where that says nothing by
    the shape: a kernel is short, and there are more output channels than it is long."""
    kernel = shape[-1] <= _LONGEST_KERNEL and shape[-1] < shape[0]
    return not _CONVOLUTIONS.search(name) and (bool(_STACKS.search(name)) or not kernel)


def _expert_counts(config: Mapping[str, Any]) -> set[int]:
    """Numbers of experts that a config names: num_experts, num_local_experts, n_routed_experts,
    moe_num_experts, in it or in one of its parts."""
    counts: set[int] = set()
    for key, value in config.items():
        if isinstance(value, Mapping):
            counts |= _expert_counts(value)
        elif type(value) is int and value > 1 and _EXPERTS.fullmatch(key):
            counts.add(value)
    return counts


def _leading_dimensions(info: TensorInfo) -> int:
    return 2 if info.reading is Reading.STACK else 1
