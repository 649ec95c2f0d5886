"""The numbers on which libraries are compared. Most are BF16 values, where ties are common.

Random float32 numbers never are ties, so libraries that break ties differently would look the same.
The numbers are the same on every run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from qtui_core.quant.codebook import LEVELS

Float32 = npt.NDArray[np.float32]

#: The absmax of groups of `ties`: with these the usual rules give scales that are powers of two,
#: and the steps of the data fall half way between levels.
_PINNED = (1.0, 6.0, 7.0, 7.5, 8.0, 15.0, 28.0, 112.0, 127.0, 127.5, 128.0, 240.0, 448.0)
#: Lengths shorter and longer than a block.
_LENGTHS = (1, 2, 3, 7, 63, 64, 65, 127, 129, 1000, 4095, 4097)
_SHAPE = (48, 256)

#: The names of what is quantized, unless a convention names other numbers.
FINITE: Final = (
    "normal", "ties", "zero groups", "one sided", "constant", "mixed magnitudes", "tiny", "huge",
)  # fmt: skip
VECTORS: Final = tuple(f"{count} elements" for count in _LENGTHS)
#: The names of what is cast, unless a convention names other numbers.
CAST: Final = ("every BF16", "halves")


def to_bf16(x: npt.ArrayLike) -> Float32:
    """`x` truncated toward zero to BF16, as float32."""
    words = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return (words & np.uint32(0xFFFF_0000)).view(np.float32)


@cache
def numbers() -> Mapping[str, Float32]:
    """All numbers, by names that say what is special about them: finite matrices `[48, 256]`, then
    others, then vectors that are cast."""
    random = np.random.default_rng(20_240_131)
    normal = to_bf16(random.standard_normal(_SHAPE))
    exponents = random.integers(-24, 25, _SHAPE)
    holes = normal.copy()
    holes[::3] = 0.0
    holes[1] = -0.0
    holes[2, ::32] = 0.0
    ties = _ties(random)
    # Numbers, or their scales, are subnormal in float32.
    steps = np.random.default_rng(20_240_132).integers(-127, 128, _SHAPE).astype(np.float32)
    broken = normal.copy()
    broken[3, 5], broken[7, 128], broken[11, 255] = np.nan, np.inf, -np.inf
    many = np.random.default_rng(20_240_134).standard_normal((512, 512))
    flat = np.concatenate([normal.reshape(-1), ties.reshape(-1)])
    return {
        "normal": normal,
        "ties": ties,
        "zero groups": holes,
        "one sided": to_bf16(np.abs(normal) + np.float32(0.5)),
        "constant": np.full(_SHAPE, to_bf16(np.float32(-0.1))),
        "mixed magnitudes": to_bf16(np.ldexp(normal, exponents)),
        "tiny": to_bf16(np.ldexp(normal, -100)),
        "huge": to_bf16(np.ldexp(np.clip(normal, -3.9, 3.9), 120)),
        "subnormal": np.ldexp(steps, -133).astype(np.float32),
        "NaN and infinities": broken,
        # So many blocks that rare faults of their 8-bit scales show.
        "many blocks": to_bf16(many),
        # No multiple of 16, 32 or 64 elements.
        "rows of 100": np.ascontiguousarray(normal[:, :100]),
        # Their mean does not depend on the order in which they are added.
        "whole numbers": np.rint(normal * 8),
        "thresholds": _thresholds(),
        "zeros": np.zeros((2, 64), np.float32),
        **{name: flat[1000 : 1000 + n] for name, n in zip(VECTORS, _LENGTHS, strict=True)},
        **_scalars(),
    }


def _thresholds() -> Float32:
    """Blocks of 64 with absmax 1, 0.25 and 8, whose elements lie on, just below and just above the
    points half way between two levels of NF4. No BF16 number lies there."""
    levels = LEVELS["nf4"]
    middle = (levels[:-1] + levels[1:]) / np.float32(2)
    around = [np.nextafter(middle, np.float32(end)) for end in (-np.inf, np.inf)]
    block = np.zeros(64, np.float32)
    block[:45], block[63] = np.concatenate([middle, *around]), 1.0
    return np.concatenate([block * np.float32(factor) for factor in (1.0, 0.25, -8.0)])


def _scalars() -> dict[str, Float32]:
    """What is cast: all BF16 values except NaN, and parts of them."""
    every = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    every = every[~np.isnan(every)]
    return {
        "every BF16": every,
        "halves": _halves(),
        "positive BF16": every[np.isfinite(every) & (every >= 2.0**-126)],
        "positive BF16, infinity": every[every >= 2.0**-126],
        "subnormal BF16": every[(every > 0) & (every < 2.0**-126)],
        "BF16 below 4": every[np.abs(every) < 4],
        "BF16 below 64": every[np.abs(every) < 64],
        "zero": np.zeros(1, np.float32),
        "NaN": np.array([np.nan, -np.nan], np.float32),
    }


def _halves() -> Float32:
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


def _ties(random: np.random.Generator) -> Float32:
    """Multiples of 1/128 of the power of two at or below an absmax of `_PINNED`. Every 16th element
    of a row is ± that absmax, so that groups of any length have it."""
    pinned = np.array(_PINNED, np.float32)[np.arange(_SHAPE[0]) % len(_PINNED), None]
    step = np.exp2(np.floor(np.log2(pinned)) - 7)
    limit = (pinned / step).astype(np.int64)
    x = random.integers(-limit, limit + 1, _SHAPE) * step
    x[:, ::16] = pinned * random.choice([-1.0, 1.0], (_SHAPE[0], _SHAPE[1] // 16))
    return np.ascontiguousarray(x, np.float32)
