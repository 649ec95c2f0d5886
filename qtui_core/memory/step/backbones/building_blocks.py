"""The parts that backbones of all families share: embeddings, masks, layers, the last norm."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.shape.model_shape import Attention, Embedding, Layer
from qtui_core.memory.step.checkpointing import checkpoint
from qtui_core.memory.step.model import Batch, Model
from qtui_core.memory.step.reentrant_checkpointing import checkpoint_reentrant
from qtui_core.memory.tape.blocks.attention.cache import Cache
from qtui_core.memory.tape.blocks.attention.chunk_mask import chunked_mask
from qtui_core.memory.tape.blocks.attention.masks import causal_mask, look_for_packing
from qtui_core.memory.tape.blocks.layers.arrangements import run_layer
from qtui_core.memory.tape.blocks.layers.parallel import summed
from qtui_core.memory.tape.blocks.linear.embedding import look_up as look_up_in
from qtui_core.memory.tape.blocks.linear.norm import normalize
from qtui_core.memory.tape.blocks.linear.state import Pass
from qtui_core.memory.tape.operations.embedding import embedding
from qtui_core.memory.tape.operations.pointwise import scale
from qtui_core.memory.tape.tape import Tape, Tensor

FACTOR: Final = Label("_to_copy")
ARANGE: Final = Label("arange")
ADD: Final = Label("add")

#: Families that scale their embeddings after the masks have been made.
SCALED_LATE: Final = ("granitemoe",)


def begin(model: Model, batch: Batch, cache: Cache | None) -> Pass:
    """The state at the beginning of a forward pass over a batch, after the tokens in the cache."""
    plan = model.plan
    queries = batch.ids.elements // plan.batch
    before = 0 if cache is None else cache.length
    return Pass(model.shape, plan, plan.batch, queries, before + queries, cache=cache)


def arange(tape: Tape, length: int) -> Tensor:
    """Positions of the tokens, which continue those in the cache."""
    tape.operation("arange")
    plain = tape.new(length, "int64", ARANGE)
    shifted = tape.new(length, "int64", ADD)
    del plain
    return shifted


def embed_tokens(tape: Tape, model: Model, ids: Tensor) -> Tensor:
    """The token embedding. With checkpointing its output is made to require a gradient
    (enable_input_require_grads, which transformers 5 then always calls)."""
    shape = model.shape
    table = shape.embeddings[0]
    base = partial(_embed_tokens, tape, model, table, ids)
    scales = shape.embedding_scales_itself
    embedded = look_up_in(tape, model.outside, table, ids, base, scales=scales)
    if model.plan.checkpointing and not embedded.requires_grad:
        embedded.requires_grad = True
    other = shape.embedding_scales_itself or shape.family in SCALED_LATE
    scaled_after = shape.embedding_scale and not other
    return scale(tape, embedded) if scaled_after else embedded


def _embed_tokens(tape: Tape, model: Model, table: Embedding, ids: Tensor) -> Tensor:
    """The module of the token embedding without its adapter. k-bit preparation precedes the
    adapter, so it is this output that must require a gradient."""
    shape, plan = model.shape, model.plan
    whole = shape.vocabulary if _is_cut(model, table) else None
    embedded = embedding(tape, model.outside[f"{table.name}.weight"], ids, table.columns, whole)
    if whole is not None:
        embedded = summed(tape, embedded)
    if shape.embedding_scales_itself:
        cast = embedded.dtype != plan.dtype
        _factor = tape.new(1, embedded.dtype, FACTOR) if cast else None
        embedded = scale(tape, embedded)
        del _factor
    if plan.checkpointing and plan.kbit_prep == "all" and not embedded.requires_grad:
        embedded.requires_grad = True
    return embedded


def look_up(
    tape: Tape, model: Model, spec: Embedding, indices: Tensor, times: int | None = None
) -> Tensor:
    """Rows of a table outside the layers. `times` is how many are looked up if indices are
    expanded."""
    if times is not None:
        indices = tape.alias(indices, times)
    return look_up_in(tape, model.outside, spec, indices)


def _is_cut(model: Model, table: Embedding) -> bool:
    """Whether a GPU has only part of the rows of the token embedding."""
    first = model.shape.embeddings[0]
    return model.plan.tensor_parallel > 1 and table == first and first.rows < model.shape.vocabulary


#: Families that make both masks, whether layers use them or not.
_ALWAYS_BOTH_MASKS: Final = ("gemma2", "gemma3_text", "cohere2", "llama4_text", "qwen2_moe")


def make_masks(
    tape: Tape, state: Pass, dtype: str, padding: Tensor | None, *, numbered: bool = True
) -> list[Tensor | None]:
    """Makes the masks that the layers use. Returns those that the class makes and no layer uses,
    which live until forward() ends. `numbered`: the class passes position ids on, so that
    transformers looks for packed sequences in them."""
    looks = numbered and padding is None and state.cache is None
    windows = {
        layer.attention.window
        for layer in state.shape.layers
        if isinstance(layer.attention, Attention)
    }
    chunked = any(getattr(layer.attention, "chunked", False) for layer in state.shape.layers)
    unused: list[Tensor | None] = []
    for window in _masks_made(state.shape.family, windows):
        if looks:
            look_for_packing(tape, state)
        seen = replace(state, keys=state.keys_within(window or None))
        if window is not None and chunked:
            mask = chunked_mask(tape, seen, dtype, padding, window)
        else:
            mask = causal_mask(tape, seen, dtype, padding, window)
        if window not in windows and windows:
            unused.append(mask)
        elif window is None:
            state.mask = mask
        else:
            state.window_mask = mask
    return unused


def _masks_made(family: str, windows: set[int | None]) -> list[int | None]:
    """The windows of the masks that a family makes, in order."""
    both = family in _ALWAYS_BOTH_MASKS
    made: list[int | None] = [None] if None in windows or not windows or both else []
    if family == "qwen2_moe" and windows == {None}:
        made.append(0)  # Qwen2MoeConfig: sliding_window is 0 unless use_sliding_window
    return made + [window for window in windows if window is not None]


def run_layers(tape: Tape, model: Model, state: Pass) -> Tensor:
    """All layers in order, each a checkpoint if the plan says so. The input of the first is taken
    out of `state`, so that nothing but the loop holds it, as in the real forward()."""
    hidden, state.entering = state.entering, None
    assert hidden is not None
    again = checkpoint_reentrant if model.plan.reentrant else checkpoint
    for index, layer in enumerate(model.shape.layers):
        tape.enter_layer(index)
        run = partial(run_layer, tape, model.layers[index], layer, _given_to(state, layer))
        hidden = again(tape, run, hidden) if model.plan.checkpointing else run(hidden)
    tape.leave_layer()
    if state.cache is not None:
        state.cache.length += state.queries
    return hidden


def _given_to(state: Pass, layer: Layer) -> Pass:
    """The state for one layer: of two masks, and of several rotary tables, only its own, so that
    its checkpoint does not hold the others."""
    spec = layer.attention
    both = state.mask is not None and state.window_mask is not None
    if not isinstance(spec, Attention) or not (both or len(state.tables) > 1):
        return state
    return replace(
        state,
        mask=state.mask if spec.window is None else None,
        window_mask=state.window_mask if spec.window is not None else None,
        tables=(state.tables[spec.table],) * len(state.tables) if state.tables else (),
    )


def last_norm(tape: Tape, model: Model, hidden: Tensor) -> Tensor:
    """The norm after the layers, if there is one."""
    spec = model.shape.final_norm
    return hidden if spec is None else normalize(tape, model.outside, spec, hidden)
