"""How one tensor is stored: in its own type, or packed by bitsandbytes with its constants."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final, Literal, NamedTuple

from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.record import Component, rounded

Kind = Literal["linear", "norm", "embedding", "parameter", "adapter", "buffer"]

#: Weights under one absmax, and absmax under one nested absmax (bitsandbytes functional.py,
#: quantize_4bit).
BLOCK: Final = 64
NESTED_BLOCK: Final = 256


class StoredTensor(NamedTuple):
    """A tensor that stays for the whole run, as one allocation.

    Attributes:
        name: of the parameter or constant as state_dict has it.
        shape: of what is stored, so a packed weight of n parameters is `[ceil(n / 2), 1]`.
        dtype: during the steps, from the first forward pass on.
        component: what it counts as.
        kind: of module it belongs to.
        requires_grad: whether it is trained.
        loaded: its type after from_pretrained; None where it is made in the preparation.
        prepared: its type after k-bit preparation.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    component: Component
    kind: Kind
    requires_grad: bool
    loaded: str | None
    prepared: str

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """As asked of the allocator, before it rounds."""
        return self.elements * SIZES[self.dtype]

    @property
    def allocated(self) -> int:
        """As the allocator takes them."""
        return rounded(self.bytes)


def constant(name: str, shape: tuple[int, ...], dtype: str) -> StoredTensor:
    """A constant of quantization, which no step changes."""
    return StoredTensor(
        name, shape, dtype, Component.QUANTIZATION, "linear", False, loaded=dtype, prepared=dtype
    )


def packed(name: str, shape: tuple[int, int], quant: str) -> Iterator[StoredTensor]:
    """What bitsandbytes stores for the frozen weight `name` of `shape` `[outputs, inputs]`.

    4-bit: two weights a byte, an absmax for each 64 (`-dq`: one byte each, with a float32 for
    each 256 of them, an offset and the table of their codes), and a table of 16 codes
    (functional.py, quantize_4bit). int8: a byte a weight and a float32 for each row
    (nn/modules.py, Int8Params).
    """
    stored = "int8" if quant == "int8" else "uint8"
    size = shape if quant == "int8" else (-(-prod(shape) // 2), 1)
    yield StoredTensor(
        name, size, stored, Component.WEIGHTS, "linear", False, loaded=stored, prepared=stored
    )
    if quant == "int8":
        yield constant(f"{name.removesuffix('.weight')}.SCB", (shape[0],), "fp32")
        return
    blocks = -(-prod(shape) // BLOCK)
    if quant.endswith("-dq"):
        yield constant(f"{name}.absmax", (blocks,), "uint8")
        yield constant(f"{name}.nested_absmax", (-(-blocks // NESTED_BLOCK),), "fp32")
        yield constant(f"{name}.nested_quant_map", (256,), "fp32")
        yield constant(f"{name}.nested_offset", (), "fp32")
    else:
        yield constant(f"{name}.absmax", (blocks,), "fp32")
    yield constant(f"{name}.quant_map", (16,), "fp32")
