"""Emulations of how optimizers store their moments in few bits.

Each map takes float32 `[n]` and returns the float32 `[n]` that would be read back. The 8-bit and
4-bit maps are those of torchao.optim 0.18; tests compare them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Final

import torch

from qtui_core.lab.numerics.rounding import STORAGES
from qtui_core.quant.codebook import dynamic_map

Map = Callable[[torch.Tensor], torch.Tensor]


@cache
def dynamic_codes(signed: bool, bits: int = 8) -> torch.Tensor:
    """The values of the dynamic map in ascending order: float32 `[2^bits]` in [-1, 1] or [0, 1].

    The number of leading zeros of a code is the power of ten, and the remaining bits divide that
    decade evenly (Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2021). The signed
    one of 8 bits is that of bitsandbytes.
    """
    if signed and bits == 8:
        return torch.from_numpy(dynamic_map().copy())
    exponents = bits - 1
    found = [0.0, 1.0]
    for index in range(exponents):
        edges = torch.linspace(0.1, 1, 2 ** (index + (not signed)) + 1)
        means = ((edges[:-1] + edges[1:]) / 2).tolist()
        decade = 10.0 ** (index - exponents + 1)
        found += [sign * decade * mean for mean in means for sign in ((1, -1) if signed else (1,))]
    return torch.tensor(sorted(found), dtype=torch.float32)


def linear_codes(bits: int = 4) -> torch.Tensor:
    """1/2^bits, 2/2^bits, ..., 1: a map without a zero, for second moments (Li et al., Memory
    Efficient Optimizers with 4-bit States, 2023)."""
    return torch.arange(1, 2**bits + 1) / 2**bits


def blockwise(codes: torch.Tensor, block: int) -> Map:
    """A map that rounds to the nearest of `codes`, with an absmax for each block."""
    between = (codes[1:] + codes[:-1]) / 2

    def apply(x: torch.Tensor) -> torch.Tensor:
        blocks = x.view(-1, block)
        scale = blocks.abs().amax(dim=1, keepdim=True).clamp_min(1e-12)
        # A value half way between two codes is rounded up.
        limits = between.to(x.device)
        index = torch.bucketize((blocks / scale).contiguous(), limits, right=True)
        return (codes.to(x.device)[index] * scale).view(x.shape)

    return apply


def fp8_blocks(block: int) -> Map:
    """A map to E4M3 with a scale of absmax/448 for each block, as AdamWFp8 stores its moments."""
    storage = STORAGES["e4m3"]

    def apply(x: torch.Tensor) -> torch.Tensor:
        blocks = x.view(-1, block)
        scale = blocks.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / storage.largest
        return storage.nearest(blocks, scale).view(x.shape)

    return apply


def fp8_expanded(block: int) -> Map:
    """As `fp8_blocks`, but each block is first raised to a power so that it fills the range of
    E4M3: sign(x)|x|^k with k = log(range of E4M3) / log(largest / smallest magnitude of the block);
    reading applies the inverse power (Xi et al., COAT, 2024). Zeros stay zero."""
    inner = fp8_blocks(block)
    whole = math.log(STORAGES["e4m3"].largest * 2**9)

    def apply(x: torch.Tensor) -> torch.Tensor:
        blocks = x.view(-1, block)
        size = blocks.abs()
        most = size.amax(dim=1, keepdim=True).clamp_min(1e-30)
        least = torch.where(size > 0, size, most).amin(dim=1, keepdim=True)
        power = whole / (most / least).log().clamp_min(1e-6)
        # Powers of the ratio to the largest magnitude do not overflow.
        raised = inner((size / most) ** power).view_as(blocks)
        return (blocks.sign() * most * raised ** (1 / power)).view(x.shape)

    return apply


def nearest(name: str) -> Map:
    """A map to the format `name` without scales, rounding to nearest."""
    return STORAGES[name].nearest


def stochastic(name: str, generator: torch.Generator) -> Map:
    """A map to the format `name` without scales, with stochastic rounding."""
    return lambda x: STORAGES[name].stochastic(x, generator)


def map_named(name: str, signed: bool) -> Map:
    """The map of that name, for moments with a sign or without, in the blocks of BLOCKS. A map of 4
    bits is linear for numbers without a sign."""
    if name not in BLOCKS:
        return nearest(name)
    block = BLOCKS[name]
    if name in ("fp8", "fp8 expanded"):
        return fp8_blocks(block) if name == "fp8" else fp8_expanded(block)
    bits = int(name[0])
    return blockwise(
        linear_codes(bits) if bits == 4 and not signed else dynamic_codes(signed, bits), block
    )


#: Elements that share a scale in torchao.optim, by map; "fp8 expanded" takes what "fp8" does, so
#: that they differ in one thing.
BLOCKS: Final = {"8-bit": 256, "fp8": 256, "fp8 expanded": 256, "4-bit": 128}
#: Bytes of an element, without scales.
BYTES: Final = {
    "fp32": 4.0,
    "bf16": 2.0,
    "8-bit": 1.0,
    "fp8": 1.0,
    "fp8 expanded": 1.0,
    "4-bit": 0.5,
}
