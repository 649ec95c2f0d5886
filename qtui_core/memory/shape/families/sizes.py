"""The sizes of a decoder or an encoder, and those that follow from them."""

from __future__ import annotations

from qtui_core.dataclass import dataclass
from qtui_core.memory.formulas.size import letter
from qtui_core.memory.shape.config_reader import Config, Keys


@dataclass(frozen=True)
class Sizes:
    """The sizes in config.json, or the family's defaults.

    Attributes:
        intermediate: width of the feed-forward part.
        rotary_dims: how many elements of a head are rotated.
        positions: the longest sequence that the model was made for, None if unknown.
        activation: name of the activation function.
        attention_dropout: of the scores, in training.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dims: int
    vocabulary: int
    positions: int | None
    activation: str
    attention_dropout: float

    @property
    def queries(self) -> int:
        """Elements of the queries of a token."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Elements of the keys, or of the values, of a token."""
        return self.kv_heads * self.head_dim


def rotated(config: Config, head_dim: int, keys: Keys, default: float) -> int:
    """How many of a head's `head_dim` elements are rotated.

    The fraction is among the rope parameters, or under `keys` of config.json. Raises UsageError if
    it is not between 0 and 1, or rotates no element.
    """
    fraction = config.number(keys, default)
    for name in ("rope_parameters", "rope_scaling"):
        parameters = config.within(name)
        if parameters is not None:
            fraction = parameters.number("partial_rotary_factor", fraction)
    if fraction is None:
        fraction = default
    dims = int(head_dim * fraction) if 0.0 < fraction <= 1.0 else 0
    if not dims:
        raise config.refuse(
            f"{fraction:g} of the {head_dim:,} elements of a head cannot be rotated; that takes a "
            f"fraction up to 1, and at least one element."
        )
    return head_dim if fraction == 1.0 else letter("R", dims)


def rotary_buffers(dims: int) -> tuple[int, ...]:
    """Bytes of the buffers of a rotary embedding over `dims` elements of a head: the inverse
    frequencies and their values before scaling, float32, one for each pair of elements."""
    size = 4 * -(-dims // 2)
    return size, size
