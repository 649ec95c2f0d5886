"""How many elements share one scale.

A tensor of any rank is seen as a matrix `[rows, columns]` whose rows are the output channels:

- `[out, in]` is itself;
- three dimensions are stacked matrices, such as fused experts or tokens: `[experts, out, in]` is
  `[experts * out, in]`. The caller passes a convolution of three dimensions as a matrix, because
  the shape alone does not show that it is one, but names do (`qtui_core.models.TensorInfo.matrix`);
- four and more dimensions are convolutions: `[out, in, height, width]` is
  `[out, in * height * width]`;
- a vector of n elements is one row `[1, n]`, a scalar `[1, 1]`.
"""

from __future__ import annotations

import math
import re
from typing import Any

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError

#: The largest group or block. A group is quantized in one piece, so this bounds the memory of a
#: streamed measurement. Schemes in use are far below it.
MAX_SIZE = 1 << 20


class _Named:
    """A granularity is written as its word and its sizes: `row`, `group64`, `tile128x128`."""

    def __post_init__(self) -> None:
        """Raises UsageError for an impossible size."""
        size, kind = math.prod(vars(self).values()), self.kind
        if not 1 <= size <= MAX_SIZE:
            raise UsageError(
                f"A {kind} of {size:,} elements is not possible: the size of a {kind} is from 1 to "
                f"{MAX_SIZE:,}."
            )

    @property
    def kind(self) -> str:
        """Its word."""
        return type(self).__name__.removeprefix("Per").lower()

    def __str__(self) -> str:
        return self.kind + "x".join(map(str, vars(self).values()))


@dataclass(frozen=True)
class PerModel(_Named):
    """One scale for all tensors of the model: `[rows, columns]` -> scale `[1]`. Its bits count for
    the model, not for a tensor."""


@dataclass(frozen=True)
class PerTensor(_Named):
    """One scale for the tensor: `[rows, columns]` -> scale `[1]`."""


@dataclass(frozen=True)
class PerRow(_Named):
    """One scale for each row, that is each output channel of a weight: `[rows, columns]` -> scale
    `[rows, 1]`."""


@dataclass(frozen=True)
class PerColumn(_Named):
    """One scale for each column: `[rows, columns]` -> scale `[1, columns]`."""


@dataclass(frozen=True)
class PerGroup(_Named):
    """One scale for `size` consecutive elements of a row: `[rows, columns]` -> scale
    `[rows, ceil(columns / size)]`. The last group of a row may be short; no group spans
    two rows."""

    size: int


@dataclass(frozen=True)
class PerBlock(_Named):
    """One scale for `size` consecutive elements of the flattened tensor, across rows, as in
    bitsandbytes: n elements -> scale `[ceil(n / size)]`. The last block may be short."""

    size: int


@dataclass(frozen=True)
class PerToken(_Named):
    """One scale for each token of an activation `[..., tokens, features]`: scale
    `[elements / features, 1]`. For a weight that is not a convolution it is the same as PerRow."""


@dataclass(frozen=True)
class PerTile(_Named):
    """One scale for a tile of `rows` by `columns` elements of the matrix: `[R, C]` -> scale
    `[ceil(R / rows), ceil(C / columns)]`; tiles at the edges may be smaller. DeepSeek-V3 stores its
    FP8 weights with tiles of 128 x 128. A tensor is read one row of tiles at a time, so `rows`
    whole rows are in memory."""

    rows: int
    columns: int


Granularity = PerModel | PerTensor | PerRow | PerColumn | PerToken | PerGroup | PerBlock | PerTile

GRANULARITY_HELP = (
    "model, tensor, row, column, token, group128, block64 or tile128x128 (with any size)"
)

_BY_WORD: dict[str, type[Any]] = {
    made.__name__.removeprefix("Per").lower(): made
    for made in (PerModel, PerTensor, PerRow, PerColumn, PerToken, PerGroup, PerBlock, PerTile)
}
#: Those that have sizes: what must follow the word, and an example.
_SIZES = {
    "group": ("([0-9]{1,9})", f"a size from 1 to {MAX_SIZE:,}", "group64"),
    "block": ("([0-9]{1,9})", f"a size from 1 to {MAX_SIZE:,}", "block64"),
    "tile": ("([0-9]{1,9})x([0-9]{1,9})", "two sizes", "tile128x128"),
}


def parse_granularity(text: str) -> Granularity | None:
    """The granularity that `text` names; None if it names none.

    Raises UsageError if it names one with an impossible size.
    """
    word = re.split("-?[0-9]", text, maxsplit=1)[0]
    if word not in _BY_WORD or (word != text and word not in _SIZES):
        return None
    pattern, what, example = _SIZES.get(word, ("", "", ""))
    sizes = re.fullmatch(pattern, text.removeprefix(word))
    if sizes is None:
        raise UsageError(f"{text!r} needs {what} right after the word, for example {example}.")
    granularity: Granularity = _BY_WORD[word](*map(int, sizes.groups()))
    return granularity


def kind_of(granularity: Granularity) -> str:
    """The word of a granularity without its size: `group`, `block`, `row`. For a tile that is not
    square, the whole text."""
    return granularity.kind if size_of(granularity) else str(granularity)


def size_of(granularity: Granularity | None) -> int | None:
    """The size of a group, a block or a square tile; None for all others."""
    sizes: set[int] = set() if granularity is None else set(vars(granularity).values())
    return sizes.pop() if len(sizes) == 1 else None
