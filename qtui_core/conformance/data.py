"""The numbers on which libraries are compared. Most are BF16 values, where ties are common.

Random float32 numbers never are ties, so libraries that break ties differently would look the same.
The numbers are the same on every run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

#: The absmax of groups of `ties`: with these the usual rules give scales that are powers of two,
#: and the steps of the data fall half way between levels.
_PINNED = (1.0, 6.0, 7.0, 7.5, 8.0, 15.0, 28.0, 112.0, 127.0, 127.5, 128.0, 240.0, 448.0)
ROWS = 48


def to_bf16(x: npt.ArrayLike) -> Float32:
    """`x` truncated toward zero to BF16, as float32."""
    words = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return (words & np.uint32(0xFFFF_0000)).view(np.float32)


@cache
def matrices(columns: int = 256) -> dict[str, Float32]:
    """Finite matrices `[48, columns]` of BF16 values; the name says what is special about each."""
    random = np.random.default_rng(20_240_131)
    shape = (ROWS, columns)
    normal = to_bf16(random.standard_normal(shape))
    exponents = random.integers(-24, 25, shape)
    holes = normal.copy()
    holes[::3] = 0.0
    holes[1] = -0.0
    holes[2, :: columns // 8] = 0.0
    return {
        "normal": normal,
        "ties": _ties(random, shape),
        "zero groups": holes,
        "one sided": to_bf16(np.abs(normal) + np.float32(0.5)),
        "constant": np.full(shape, to_bf16(np.float32(-0.1))),
        "mixed magnitudes": to_bf16(np.ldexp(normal, exponents)),
        "tiny": to_bf16(np.ldexp(normal, -100)),
        "huge": to_bf16(np.ldexp(np.clip(normal, -3.9, 3.9), 120)),
    }


@cache
def subnormals(columns: int = 256) -> dict[str, Float32]:
    """Matrices `[48, columns]` whose numbers, or whose scales, are subnormal in float32."""
    random = np.random.default_rng(20_240_132)
    steps = random.integers(-127, 128, (ROWS, columns)).astype(np.float32)
    return {"subnormal": np.ldexp(steps, -133).astype(np.float32)}


@cache
def with_holes(columns: int = 256) -> dict[str, Float32]:
    """A matrix `[48, columns]` with NaN, +inf and -inf, each in a group of its own."""
    x = matrices(columns)["normal"].copy()
    x[3, 5], x[7, columns // 2], x[11, columns - 1] = np.nan, np.inf, -np.inf
    return {"NaN and infinities": x}


@cache
def many_blocks() -> dict[str, Float32]:
    """A matrix `[512, 512]`: so many blocks that rare faults of their 8-bit scales show."""
    random = np.random.default_rng(20_240_134)
    return {"normal": to_bf16(random.standard_normal((512, 512)))}


@cache
def ragged() -> dict[str, Float32]:
    """A matrix `[48, 100]`, whose rows are not a multiple of 16, 32 or 64 elements."""
    return {"rows of 100": np.ascontiguousarray(matrices()["normal"][:, :100])}


@cache
def vectors() -> dict[str, Float32]:
    """Vectors of odd lengths, shorter and longer than a block, cut from the matrices."""
    flat = np.concatenate([matrices()[name].reshape(-1) for name in ("normal", "ties")])
    lengths = (1, 2, 3, 7, 63, 64, 65, 127, 129, 1000, 4095, 4097)
    return {f"{count} elements": flat[1000 : 1000 + count].copy() for count in lengths}


@cache
def every_bf16() -> Float32:
    """All BF16 values except NaN: float32 `[65,282]`."""
    values = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    return values[~np.isnan(values)]


@cache
def between_16_bits() -> Float32:
    """float32 numbers on, just below and just above the ties of BF16 (16 bits dropped) and of FP16
    (13 bits dropped)."""
    random = np.random.default_rng(20_240_133)
    words = []
    for dropped in (13, 16):
        upper = random.integers(0, 1 << (32 - dropped), 4096) << dropped
        half = 1 << (dropped - 1)
        words += [upper + half + nudge for nudge in (-1, 0, 1)]
    values = np.concatenate(words).astype(np.uint32).view(np.float32)
    return values[~np.isnan(values)]


def _ties(random: np.random.Generator, shape: tuple[int, int]) -> Float32:
    """Multiples of 1/128 of the power of two at or below an absmax of `_PINNED`. Every 16th element
    of a row is ± that absmax, so that groups of any length have it."""
    pinned = np.array(_PINNED, np.float32)[np.arange(shape[0]) % len(_PINNED), None]
    step = np.exp2(np.floor(np.log2(pinned)) - 7)
    limit = (pinned / step).astype(np.int64)
    x = random.integers(-limit, limit + 1, shape) * step
    signs = random.choice([-1.0, 1.0], (shape[0], -(-shape[1] // 16)))
    x[:, ::16] = pinned * signs
    return np.ascontiguousarray(x, np.float32)


def _of_bf16(kept: Callable[[Float32], npt.NDArray[np.bool_]]) -> Callable[[], Float32]:
    """A function that gives the BF16 values for which `kept` is true."""
    return lambda: np.ascontiguousarray(every_bf16()[kept(every_bf16())])


#: What is cast, by the name that is shown in the example of a difference.
NUMBERS: Final[Mapping[str, Callable[[], Float32]]] = {
    "every BF16": every_bf16,
    "ties": between_16_bits,
    "positive BF16": _of_bf16(lambda x: np.isfinite(x) & (x >= 2.0**-126)),
    "positive BF16, infinity": _of_bf16(lambda x: x >= 2.0**-126),
    "subnormal BF16": _of_bf16(lambda x: (x > 0) & (x < 2.0**-126)),
    "BF16 below 4": _of_bf16(lambda x: np.abs(x) < 4),
    "BF16 below 64": _of_bf16(lambda x: np.abs(x) < 64),
    "zero": lambda: np.zeros(1, np.float32),
    "NaN": lambda: np.array([np.nan, -np.nan], np.float32),
}
