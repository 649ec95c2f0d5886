"""How one tensor is stored: in its own dtype, or packed, with its constants."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final, Literal, NamedTuple

from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.replay.record import Component, rounded
from qtui_core.memory.shape.packings import UNPACKED_BY_FORWARD, Layout, PackedTensor

Kind = Literal["linear", "norm", "embedding", "parameter", "adapter", "buffer"]

#: Weights per absmax, and absmaxes per nested absmax (bitsandbytes functional.py, quantize_4bit).
BLOCK: Final = 64
NESTED_BLOCK: Final = 256


class StoredTensor(NamedTuple):
    """A tensor that stays for the whole run, as one allocation.

    Attributes:
        name: of the parameter or constant in state_dict.
        shape: as stored. A 4-bit weight of n parameters is bytes, `[ceil(n / 2 / s), s]`, where s
            is the size of the type into which they are packed.
        dtype: during the steps, from the first forward pass on.
        component: that it counts as.
        kind: of module that it belongs to.
        requires_grad: whether it is trained.
        loaded: its dtype after from_pretrained; None if the preparation makes it.
        prepared: its dtype after k-bit preparation.
        packing: kind of `Layout` if it holds the codes of a weight that a checkpoint stores packed.
        loaded_shape: as stored until the first forward pass unpacks it; None if none does.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    component: Component
    kind: Kind
    requires_grad: bool
    loaded: str | None
    prepared: str
    packing: str = ""
    loaded_shape: tuple[int, ...] | None = None

    @property
    def loaded_elements(self) -> int:
        """Elements until the first forward pass."""
        return self.elements if self.loaded_shape is None else prod(self.loaded_shape)

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """As requested from the allocator, before rounding."""
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


def from_checkpoint(
    name: str, layout: Layout, shape: tuple[int, ...], dtype: str
) -> Iterator[StoredTensor]:
    """The tensors for the weight of the module `name`, `[..., outputs, inputs]`, in a model of
    `dtype`, as a checkpoint packs it. If the first forward pass unpacks it, they have the bytes of
    the unpacked weight from then on (compressors of compressed-tensors: scales in the dtype of the
    weight, zero points as single elements)."""
    unpacked = layout.kind in UNPACKED_BY_FORWARD
    for number, part in enumerate(layout.parts(shape, dtype)):
        full = f"{name}{part.name}" if part.name[:1] in ("", "_") else f"{name}.{part.name}"
        if number:
            stored = constant(full, part.sizes, part.dtype)
        else:
            stored = StoredTensor(
                full, part.sizes, part.dtype, Component.WEIGHTS, "linear", False,
                loaded=part.dtype, prepared=part.dtype, packing=layout.kind,
            )  # fmt: skip
        yield _unpacked(name, stored, part, layout, shape, dtype) if unpacked else stored


def _unpacked(
    name: str,
    stored: StoredTensor,
    part: PackedTensor,
    layout: Layout,
    shape: tuple[int, ...],
    dtype: str,
) -> StoredTensor:
    if stored.packing:
        return stored._replace(
            name=f"{name}.weight", shape=shape, dtype=dtype, loaded_shape=part.sizes
        )
    if part.name == "weight_scale" and part.dtype != dtype:
        return stored._replace(dtype=dtype, loaded_shape=part.sizes)
    if part.name == "weight_zero_point" and part.dtype == "int32":
        groups = (shape[0], layout.groups(shape[-1]))
        return stored._replace(shape=groups, dtype="int8", loaded_shape=part.sizes)
    return stored


def packed(
    name: str, shape: tuple[int, int], quant: str, storage: str = "uint8", packing: str = ""
) -> Iterator[StoredTensor]:
    """What bitsandbytes stores for the frozen weight `name` of `shape` `[outputs, inputs]`; 4-bit
    codes are packed into the type `storage`. `packing` is as in `StoredTensor`.

    4-bit: two weights per byte, an absmax for each 64 (with `-dq` one byte each, with a float32 for
    each 256 of them, an offset and the table of their codes), and a table of 16 codes
    (functional.py, quantize_4bit). int8: one byte per weight and a float32 for each row
    (nn/modules.py, Int8Params).
    """
    stored = "int8" if quant == "int8" else "uint8"
    width = SIZES[storage]
    size = shape if quant == "int8" else (-(-prod(shape) // (2 * width)), width)
    yield StoredTensor(
        name, size, stored, Component.WEIGHTS, "linear", False,
        loaded=stored, prepared=stored, packing=packing,
    )  # fmt: skip
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
