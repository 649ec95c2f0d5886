"""The state that a forward pass hands to its layers."""

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
        shape, plan: of the model and the run; every option of the plan has a value.
        batch: sequences.
        queries: tokens of each sequence that are computed now.
        keys: tokens of each sequence that these can see, including those in the cache.
        tables: cosines and sines for rotary positions, each `[queries, rotary_dims]`; a pair for
            each kind of layer that has its own.
        mask: of scores, or None: bool `[batch, queries, keys]`; for eager attention additive, in
            the dtype of the model. `window_mask` is for layers with a window.
        positions: position ids, int64.
        cache: keys and values, in inference.
        encoded: an encoder's output, for cross attention.
        alibi: the bias of scores by distance, `[batch * heads, 1, keys]`.
        outputs: what the last layer returned besides its hidden states, which the loop over layers
            holds until the next layer has returned (BLOOM).
        entering: the input of the first layer, until that begins.
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
        """The mask for an attention."""
        return self.window_mask if spec.window is not None else self.mask

    def keys_within(self, window: int | None) -> int:
        """Tokens of each sequence that a layer with a window gets: those in its cache and the new
        ones."""
        if window is None or self.cache is None:
            return self.keys
        return min(self.keys - self.queries, window - 1) + self.queries

    @property
    def tokens(self) -> int:
        """Tokens that are computed now, of all sequences."""
        return self.batch * self.queries
