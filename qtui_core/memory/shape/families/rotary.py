"""Sizes that rotary positions decide."""

from __future__ import annotations

from qtui_core.memory.formulas.size import letter
from qtui_core.memory.shape.config_reader import Config, Keys


def rotary_buffers(dims: int) -> tuple[int, ...]:
    """Bytes of the buffers of a rotary embedding over `dims` elements of a head: the inverse
    frequencies and what they were before any scaling, float32, one for each pair of elements."""
    size = 4 * -(-dims // 2)
    return size, size


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
