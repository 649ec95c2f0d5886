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

import re

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError

#: The largest group or block. A group is quantized in one piece, so this bounds the memory of a
#: streamed measurement. Schemes in use are far below it.
MAX_SIZE = 1 << 20


@dataclass(frozen=True)
class PerModel:
    """One scale for all tensors of the model: `[rows, columns]` -> scale `[1]`. Its bits count for
    the model, not for a tensor."""

    def __str__(self) -> str:
        return "model"


@dataclass(frozen=True)
class PerTensor:
    """One scale for the tensor: `[rows, columns]` -> scale `[1]`."""

    def __str__(self) -> str:
        return "tensor"


@dataclass(frozen=True)
class PerRow:
    """One scale for each row, that is each output channel of a weight: `[rows, columns]` -> scale
    `[rows, 1]`."""

    def __str__(self) -> str:
        return "row"


@dataclass(frozen=True)
class PerColumn:
    """One scale for each column: `[rows, columns]` -> scale `[1, columns]`."""

    def __str__(self) -> str:
        return "column"


@dataclass(frozen=True)
class PerGroup:
    """One scale for `size` consecutive elements of a row: `[rows, columns]` -> scale
    `[rows, ceil(columns / size)]`. The last group of a row may be short; no group spans
    two rows."""

    size: int

    def __post_init__(self) -> None:
        _check_size("group", self.size)

    def __str__(self) -> str:
        return f"group{self.size}"


@dataclass(frozen=True)
class PerBlock:
    """One scale for `size` consecutive elements of the flattened tensor, across rows, as in
    bitsandbytes: n elements -> scale `[ceil(n / size)]`. The last block may be short."""

    size: int

    def __post_init__(self) -> None:
        _check_size("block", self.size)

    def __str__(self) -> str:
        return f"block{self.size}"


@dataclass(frozen=True)
class PerToken:
    """One scale for each token of an activation `[..., tokens, features]`: scale
    `[elements / features, 1]`. For a weight that is not a convolution it is the same as PerRow."""

    def __str__(self) -> str:
        return "token"


@dataclass(frozen=True)
class PerTile:
    """One scale for a tile of `rows` by `columns` elements of the matrix: `[R, C]` -> scale
    `[ceil(R / rows), ceil(C / columns)]`; tiles at the edges may be smaller. DeepSeek-V3 stores its
    FP8 weights with tiles of 128 x 128. A tensor is read one row of tiles at a time, so `rows`
    whole rows are in memory."""

    rows: int
    columns: int

    def __post_init__(self) -> None:
        _check_size("tile", self.rows * self.columns)

    def __str__(self) -> str:
        return f"tile{self.rows}x{self.columns}"


Granularity = PerModel | PerTensor | PerRow | PerColumn | PerToken | PerGroup | PerBlock | PerTile

GRANULARITY_HELP = (
    "model, tensor, row, column, token, group128, block64 or tile128x128 (with any size)"
)

_PLAIN: dict[str, Granularity] = {
    str(g): g for g in (PerModel(), PerTensor(), PerRow(), PerColumn(), PerToken())
}
_SIZED = re.compile(r"(group|block)(-?[0-9]*)")
_TILE = re.compile(r"tile([0-9]{1,9})x([0-9]{1,9})")


def parse_granularity(text: str) -> Granularity | None:
    """The granularity that `text` names; None if it names none.

    Raises UsageError if it names one with an impossible size.
    """
    if text in _PLAIN:
        return _PLAIN[text]
    if text.startswith("tile"):
        tile = _TILE.fullmatch(text)
        if tile is None:
            raise UsageError(f"{text!r} needs two sizes after the word, for example tile128x128.")
        return PerTile(int(tile.group(1)), int(tile.group(2)))
    match = _SIZED.fullmatch(text)
    if match is None:
        return None
    kind, digits = match.groups()
    if not digits.isdigit() or len(digits) > 9:
        raise UsageError(
            f"{text!r} needs a size from 1 to {MAX_SIZE:,} right after the word, "
            f"for example {kind}64."
        )
    return PerGroup(int(digits)) if kind == "group" else PerBlock(int(digits))


def kind_of(granularity: Granularity) -> str:
    """The word of a granularity without its size: `group`, `block`, `row`. For a tile that is not
    square, the whole text."""
    match granularity:
        case PerGroup():
            return "group"
        case PerBlock():
            return "block"
        case PerTile(rows, columns) if rows == columns:
            return "tile"
        case _:
            return str(granularity)


def size_of(granularity: Granularity | None) -> int | None:
    """The size of a group, a block or a square tile; None for all others."""
    match granularity:
        case PerGroup(size) | PerBlock(size):
            return size
        case PerTile(rows, columns) if rows == columns:
            return rows
        case _:
            return None


def _check_size(kind: str, size: int) -> None:
    if not 1 <= size <= MAX_SIZE:
        raise UsageError(
            f"A {kind} of {size:,} elements is not possible: the size of a {kind} is from 1 "
            f"to {MAX_SIZE:,}."
        )
