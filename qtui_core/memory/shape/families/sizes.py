"""The sizes of a decoder or an encoder, and those that follow from them."""

from __future__ import annotations

from qtui_core.dataclass import dataclass
from qtui_core.memory.formulas.size import letter
from qtui_core.memory.shape.config_reader import Config, Keys


@dataclass(frozen=True)
class Sizes:
    """What config.json says, or the class of the family assumes where it says nothing.

    Attributes:
        intermediate: width of the feed-forward part.
        rotary_dims: of a head, how many elements are rotated.
        positions: the longest sequence the model was made for, None where nothing tells.
        activation: name of the function of the feed-forward part.
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


def divided(config: Config, hidden: int, heads: int) -> int:
    """Elements of a head. Raises UsageError where heads do not divide the hidden size."""
    if hidden % heads:
        raise config.refuse(
            f"{heads} heads cannot share a hidden size of {hidden:,}, which is no multiple of them."
        )
    return hidden // heads


def rotated(config: Config, head_dim: int, keys: Keys, default: float) -> int:
    """Of a head of `head_dim` elements, how many are rotated.

    The fraction stands among the parameters of rotation, or under `keys` of config.json.
    Raises UsageError for a fraction that is none.
    """
    fraction = config.number(keys, default)
    for name in ("rope_parameters", "rope_scaling"):
        parameters = config.within(name)
        if parameters is not None:
            fraction = parameters.number("partial_rotary_factor", fraction)
    if fraction is None:
        fraction = default
    if not 0.0 < fraction <= 1.0:
        raise config.refuse(f"{fraction:g} of a head cannot be rotated; it must be above 0, to 1.")
    return head_dim if fraction == 1.0 else letter("R", int(head_dim * fraction))


def rotary_buffers(dims: int) -> tuple[int, ...]:
    """Bytes of the buffers of a rotary embedding over `dims` elements of a head: the inverse
    frequencies and what they were before any scaling, float32, one for each pair of elements."""
    size = 4 * -(-dims // 2)
    return size, size
