"""What a forward pass hands to its layers."""

from __future__ import annotations

from qtui_core.dataclass import dataclass
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.shape.model_shape import Attention, ModelShape
from qtui_core.memory.tape.blocks.attention.cache import Cache
from qtui_core.memory.tape.tape import Tensor


@dataclass
class Pass:
    """One forward pass.

    Attributes:
        shape, plan: of the model and the run; nothing of the plan is left open.
        batch: sequences.
        queries: tokens of each that are computed now.
        keys: tokens of each that they can see, with those in the cache.
        tables: cosines and sines of the rotation, each `[queries, rotary_dims]`, a pair for each
            kind of layer that has its own.
        mask: of scores, or None: bool `[batch, queries, keys]`, or added, for eager attention in
            the type of the model. `window_mask` is that of layers with a window.
        positions: numbers of the tokens, int64.
        cache: keys and values, in inference.
        encoded: what an encoder gave, for cross attention.
        alibi: the bias of scores by distance, `[batch * heads, 1, keys]`.
        outputs: what the last layer gave besides its hidden states, which the loop over layers
            holds until the next has given its own (BLOOM).
        entering: what enters the first layer, until it does.
    """

    shape: ModelShape
    plan: RunPlan
    batch: int
    queries: int
    keys: int
    tables: tuple[tuple[Tensor, Tensor], ...] = ()
    mask: Tensor | None = None
    window_mask: Tensor | None = None
    positions: Tensor | None = None
    cache: Cache | None = None
    encoded: Tensor | None = None
    alibi: Tensor | None = None
    outputs: Tensor | None = None
    entering: Tensor | None = None

    def mask_of(self, spec: Attention) -> Tensor | None:
        """The mask that an attention is given."""
        return self.window_mask if spec.window is not None else self.mask

    def keys_within(self, window: int | None) -> int:
        """Tokens of each sequence that a layer with a window is given: those that its cache holds,
        and the new ones."""
        if window is None or self.cache is None:
            return self.keys
        return min(self.keys - self.queries, window - 1) + self.queries

    @property
    def tokens(self) -> int:
        """Tokens that are computed now."""
        return self.batch * self.queries
