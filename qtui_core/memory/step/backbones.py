"""A model whose weights are on the tape, the inputs of a step, and what runs before the head, by
family: embeddings, masks, layers and the last norm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from qtui_core.dataclass import dataclass
from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import OUTSIDE
from qtui_core.memory.shape.model_shape import (
    Attention,
    Embedding,
    Layer,
    Linear,
    ModelShape,
    Norm,
    Tower,
)
from qtui_core.memory.shape.weights import blocks_of
from qtui_core.memory.tape.blocks.layers import run_layer
from qtui_core.memory.tape.blocks.modules import look_up, normalize, project
from qtui_core.memory.tape.blocks.state import (
    Cache,
    Pass,
    causal_mask,
    chunked_mask,
    look_for_packing,
    offset,
    tables_of,
)
from qtui_core.memory.tape.blocks.weights import Weights
from qtui_core.memory.tape.operations import all_reduced, cat, embedding
from qtui_core.memory.tape.tape import Tape, checkpoint, checkpoint_reentrant
from qtui_core.memory.tape.tensors import SCALE, Tensor


@dataclass(frozen=True)
class Batch:
    """The inputs of a step: token ids and labels `[batch, sequence]` int64, and the mask of padded
    sequences, if there are any. A pipeline stage without an embedding gets the hidden states that
    it `received` instead."""

    ids: Tensor
    labels: Tensor
    padding: Tensor | None
    received: Tensor | None = None


class Model:
    """A model whose weights are on the tape.

    Attributes:
        shape, plan: every option of the plan has a value.
        outside: weights outside of layers.
        layers: weights of each layer that has its own.
    """

    def __init__(self, shape: ModelShape, plan: RunPlan) -> None:
        self.shape = shape
        self.plan = plan
        outside, *blocks = blocks_of(shape, plan)
        self.outside = Weights(plan, outside.tensors)
        places = {prefix: block.tensors for block in blocks for prefix in block.prefixes}
        prefixes = [f"{shape.layer_prefix}.{i}" for i in range(len(places))]
        self.layers = tuple(Weights(plan, places[prefix]) for prefix in prefixes)

    def sweep(self, tape: Tape) -> Iterator[Weights]:
        """All weights, those outside of layers first; marks each layer on the tape."""
        tape.enter_layer(OUTSIDE)
        yield self.outside
        for index, weights in enumerate(self.layers):
            tape.enter_layer(index)
            yield weights
        tape.leave_layer()


SEEING: Final = "encoder of images"
#: Families that scale their embeddings after the masks have been made.
SCALED_LATE: Final = ("granitemoe",)


def begin(model: Model, batch: Batch, cache: Cache | None) -> Pass:
    """The state at the beginning of a forward pass over a batch, after the tokens in the cache."""
    plan = model.plan
    queries = batch.ids.elements // plan.batch
    before = 0 if cache is None else cache.length
    tape = batch.ids.tape
    return Pass(tape, model.shape, plan, plan.batch, queries, before + queries, cache=cache)


def embed_tokens(model: Model, ids: Tensor) -> Tensor:
    """The token embedding. With checkpointing its output is made to require a gradient
    (enable_input_require_grads, which transformers 5 then always calls)."""
    shape = model.shape
    table = shape.embeddings[0]
    base = partial(_embed_tokens, model, table, ids)
    scales = shape.embedding_scales_itself
    embedded = look_up(model.outside, table, ids, base, scales=scales)
    embedded.requires_grad |= bool(model.plan.checkpointing)
    other = scales or shape.family in SCALED_LATE
    return embedded * SCALE if shape.embedding_scale and not other else embedded


def _embed_tokens(model: Model, table: Embedding, ids: Tensor) -> Tensor:
    """The module of the token embedding without its adapter. k-bit preparation precedes the
    adapter, so it is this output that must require a gradient."""
    shape, plan = model.shape, model.plan
    # A GPU may have only part of the rows.
    cut = plan.tensor_parallel > 1 and table.rows < shape.vocabulary
    whole = shape.vocabulary if cut else None
    embedded = embedding(model.outside[f"{table.name}.weight"], ids, table.columns, whole)
    if whole is not None:
        embedded = all_reduced(embedded)
    if shape.embedding_scales_itself:
        cast = embedded.dtype != plan.dtype
        _factor = ids.tape.new(1, embedded.dtype, "_to_copy") if cast else None
        embedded = embedded * SCALE
        del _factor
    if table.name == shape.embeddings[0].name:
        embedded.requires_grad |= bool(plan.checkpointing) and plan.kbit_prep == "all"
    return embedded


def _of_each_layer(model: Model, ids: Tensor, inputs_embeds: Tensor) -> Tensor:
    """get_per_layer_inputs and project_per_layer_inputs of Gemma 3n and 4: `[tokens, layers,
    width]`, the sum of an embedding of its own and of a projection of the other."""
    projection, norm = cast(tuple[Linear, Norm], model.shape.embedding_modules[:2])
    table, streams = model.shape.embeddings[1], model.shape.head_modules
    within: list[Tensor] = []
    if streams:  # Gemma 3n looks up tokens beyond the table as the first
        tape, count = ids.tape, ids.elements
        tape.operation("where")
        within = [tape.new(count, "bool", name) for name in ("ge", "lt", "logical_and")][2:]
        ids = [tape.new(1, "int64", "scalar_tensor"), tape.new(count, "int64", "where")].pop()
    base = partial(_embed_tokens, model, table, ids)
    rows = look_up(model.outside, table, ids, base, scales=True)
    del ids, base, within
    projected = project(model.outside, projection, inputs_embeds)
    projected = projected.op("mul_", "mul", view=True) if streams else projected * SCALE
    projected = normalize(model.outside, norm, projected)
    return (projected + rows) * SCALE


def _streams(model: Model, state: Pass, hidden: Tensor) -> Tensor:
    """How Gemma3nTextModel.forward makes streams of embeddings, or of the layers' outputs, stacked:
    products that become as large as the first. What it names is held until the next time."""
    held, shape, size = state.held, model.shape, state.tokens * model.shape.hidden
    modules = shape.head_modules if held else shape.embedding_modules[2:]
    product, dtype = modules[0].name, held.setdefault("dtype", hidden.dtype)

    def stream() -> Tensor:
        return hidden if hidden.elements == size else hidden.part(size)

    held["target"] = stream().pow(2).mean(state.tokens).pow(0.5)
    held["streams"] = [stream()]
    for module in modules:
        held[product] = project(model.outside, cast(Linear, module), stream())
        held["current"] = held[product].to(dtype)
        held["magnitude"] = held["current"].pow(2).mean(state.tokens)
        held["magnitude"] = held["magnitude"].clamp(1).sqrt()
        held["current"] = (held["current"] * held["target"]).div(held["magnitude"])
        held["streams"].append(held["current"])
    return cat(*held["streams"])


#: Families that make both masks, whether layers use them or not.
_ALWAYS_BOTH_MASKS: Final = (
    "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "cohere2", "llama4_text", "qwen2_moe",
    "olmo3", "gpt_oss",
)  # fmt: skip


def make_masks(
    state: Pass, dtype: str, padding: Tensor | None, *, numbered: bool = True
) -> list[Tensor | None]:
    """Makes the masks that the layers use. Returns those that the class makes and no layer uses,
    which live until forward() ends. `numbered`: the class passes position ids on, so that
    transformers looks for packed sequences in them."""
    looks = numbered and padding is None and state.cache is None
    windows = {
        layer.attention.window
        for layer in state.shape.layers
        if isinstance(layer.attention, Attention) and layer.attention.net is None
    }
    chunked = any(getattr(layer.attention, "chunked", False) for layer in state.shape.layers)
    unused: list[Tensor | None] = []
    both = state.shape.family in _ALWAYS_BOTH_MASKS
    made: list[int | None] = [None] if None in windows or not windows or both else []
    if state.shape.family == "qwen2_moe" and windows == {None}:
        made.append(0)  # Qwen2MoeConfig: sliding_window is 0 unless use_sliding_window
    for window in (*made, *(window for window in windows if window is not None)):
        if looks:
            look_for_packing(state)
        seen = replace(state, keys=state.keys_within(window or None))
        if window is not None and chunked:
            mask = chunked_mask(seen, dtype, padding, window)
        else:
            mask = causal_mask(seen, dtype, padding, window)
        if window not in windows and windows:
            unused.append(mask)
        elif window is None:
            state.mask = mask
        else:
            state.window_mask = mask
    if any(layer.attention.style == "delta" for layer in state.shape.layers):
        state.window_mask = padding  # create_recurrent_attention_mask
    return unused


def run_layers(model: Model, state: Pass) -> Tensor:
    """All layers in order, each a checkpoint if the plan says so, and the norm after them, if there
    is one. The input of the first is taken out of `state`, so that nothing but the loop holds it,
    as in the real forward()."""
    tape = state.tape
    hidden, state.entering = state.entering, None
    assert hidden is not None
    sliced = not (model.plan.trains or state.held) and model.plan.attention != "flash"
    again = checkpoint_reentrant if model.plan.reentrant else checkpoint
    for index, layer in enumerate(model.shape.layers):
        tape.enter_layer(index)
        if sliced and getattr(layer.attention, "shares", None) and state.queries > 1:
            hidden, state = _last_tokens(hidden, state)
        weights = model.layers[index % len(model.layers)]
        run = partial(run_layer, weights, layer, _given_to(state, layer))
        hidden = again(tape, run, hidden) if model.plan.checkpointing else run(hidden)
        if index < len(state.images):
            hidden = hidden + state.images[index]
    tape.leave_layer()
    if state.cache is not None:
        state.cache.length = state.keys
    if state.held:
        hidden = _streams(model, state, hidden)
        hidden = hidden.mean(state.tokens * model.shape.hidden)
    return normalize(model.outside, model.shape.final_norm, hidden)


def _last_tokens(hidden: Tensor, state: Pass) -> tuple[Tensor, Pass]:
    """_maybe_slice_kv_shared_inputs of Gemma 4: in an inference, layers without keys of their own
    work on the last token of each sequence alone."""

    def last(x: Any) -> Any:
        return None if x is None else x.alias(x.elements // state.queries)

    return last(hidden), replace(
        state, queries=1, mask=last(state.mask), window_mask=last(state.window_mask),
        own=last(state.own), tables=tuple((last(a), last(b)) for a, b in state.tables),
    )  # fmt: skip


def _given_to(state: Pass, layer: Layer) -> Pass:
    """The state for one layer: of masks, and of several rotary tables, only its own, so that its
    checkpoint does not hold the others."""
    spec = layer.attention
    if not isinstance(spec, Attention):
        return state
    if state.own is not None:
        state = replace(state, own=state.own.part(state.tokens * layer.gates[0].outputs))
    return replace(
        state,
        images=(),
        held={},
        mask=state.mask if spec.window is None else None,
        window_mask=state.window_mask if spec.window is not None else None,
        tables=(state.tables[spec.table],) * len(state.tables) if state.tables else (),
    )


def _see(model: Model, tower: Tower, tape: Tape, dtype: str) -> tuple[list[Tensor], list[Tensor]]:
    """What an encoder makes of images, `[image tokens, hidden]` each, for embeddings and, in Qwen 3
    VL, layers; and what lives until forward() ends. Bounds: a layer has the larger of its parts and
    its weights unpacked, recomputed twice that; what follows keeps as much as five layers."""
    plan, sizes = model.plan, Counter(tower.sizes)
    images, size, width = plan.batch * plan.image_tokens, SIZES[dtype], sizes["width"]
    patches = images * sizes["patches"]
    row = max((9 * size + 26 * sizes["float32"]) * width, 3 * size * (width + sizes["inner"]))
    pairs = patches * patches // (1 if sizes["joined"] else plan.batch)
    mask = tape.new(1 + pairs * (size + 1) * sizes["masked"], "uint8", SEEING)
    largest = max(m.inputs * m.outputs for m in tower.modules if isinstance(m, Linear))
    working = patches * row + 2 * largest * plan.quantized
    working += 10 * sizes["heads"] * pairs * (plan.attention == "eager")
    steps = (SEEING,) * -(-(2 * working + mask.elements) // (patches * width * size))
    hidden = tape.new(patches * width, dtype, SEEING)
    hidden.requires_grad = plan.checkpointing is True and sizes["tracked"] > 0
    kept = [tape.new(3 * plan.tokens, "int64", "positions")]
    for _ in range(sizes["depth"] + 5):
        tape.new(working, "uint8", SEEING)  # at its widest
        kept += [hidden] * sizes["collected"]
        hidden = hidden.op(SEEING, SEEING, saved=hidden, steps=steps)
    count, elements = 1 + sizes["deep"], images * model.shape.hidden
    made = [hidden.op(SEEING, SEEING, elements, saved=mask) for _ in range(count)]
    return [each.clone() for each in made], [*kept, hidden, *made[1:]]


def decoder(model: Model, batch: Batch, cache: Cache | None) -> Tensor:
    """LlamaModel.forward: hidden states after the last norm."""
    shape = model.shape
    state = begin(model, batch, cache)
    inputs_embeds = batch.received or embed_tokens(model, batch.ids)
    padding = batch.padding
    if model.plan.image_tokens and shape.tower and not (cache and cache.length):
        (seen, *state.images), _kept = _see(model, shape.tower, state.tape, inputs_embeds.dtype)
        inputs_embeds = inputs_embeds.op("masked_scatter", "masked_fill", saved=batch.ids) + seen
        padding = padding or (batch.ids if "blocks" in shape.tower.sizes else None)
    if shape.embedding_modules:
        state.own = _of_each_layer(model, batch.ids, inputs_embeds)
    state.tape.operation("arange")
    state.positions = offset(state.tape, state.queries)
    _unused = make_masks(state, inputs_embeds.dtype, padding, numbered=shape.family != "gpt_oss")
    if shape.family in SCALED_LATE:
        inputs_embeds = inputs_embeds * SCALE
    state.entering = inputs_embeds.dropout(shape.embedding_dropout)
    if len(shape.embedding_modules) > 2:
        state.entering = _streams(model, state, inputs_embeds)
    state.tables = tables_of(state, state.entering.dtype)
    return run_layers(model, state)


def gpt2(model: Model, batch: Batch, cache: Cache | None) -> Tensor:
    """GPT2Model.forward. The embeddings have names until it returns; layers get the position ids.
    GPTBigCodeModel.forward makes the masks earlier, and keeps the position ids to itself."""
    bigcode = model.shape.family == "gpt_bigcode"
    state = begin(model, batch, cache)
    inputs_embeds = embed_tokens(model, batch.ids)
    state.tape.operation("arange")
    positions = offset(state.tape, state.queries)
    if bigcode:
        make_masks(state, inputs_embeds.dtype, batch.padding)
    else:
        state.positions = positions
    position_embeds = look_up(model.outside, model.shape.embeddings[1], positions)
    hidden = inputs_embeds + position_embeds
    if not bigcode:
        make_masks(state, inputs_embeds.dtype, batch.padding)
    state.entering = hidden.dropout(model.shape.embedding_dropout)
    del hidden
    return run_layers(model, state)


def opt(model: Model, batch: Batch, cache: Cache | None) -> Tensor:
    """OPTDecoder.forward: positions are counted from a float mask, and embeddings may be narrower
    than the layers."""
    tape, shape = batch.ids.tape, model.shape
    state = begin(model, batch, cache)
    inputs_embeds = embed_tokens(model, batch.ids)
    mask = batch.padding or tape.new(state.batch * state.keys, "fp32", "ones")
    state.positions = _counted(mask)
    make_masks(state, inputs_embeds.dtype, batch.padding, numbered=False)
    pos_embeds = look_up(model.outside, shape.embeddings[1], tape.new(state.tokens, "int64", "add"))
    for module in shape.embedding_modules:
        assert isinstance(module, Linear)
        inputs_embeds = project(model.outside, module, inputs_embeds)
    state.entering = inputs_embeds + pos_embeds
    hidden = run_layers(model, state)
    for module in shape.head_modules:
        assert isinstance(module, Linear)
        hidden = project(model.outside, module, hidden)
    return hidden


def _counted(mask: Tensor) -> Tensor:
    """`(cumsum(mask) * mask - 1).long()`."""
    tape = mask.tape
    tape.operation("cumsum")
    _sums = tape.new(mask.elements, mask.dtype, "cumsum")
    product = tape.new(mask.elements, mask.dtype, "cumsum")
    less = tape.new(mask.elements, mask.dtype, "cumsum")
    del product
    return less if less.dtype == "int64" else tape.new(mask.elements, "int64", "cumsum")


def bert(model: Model, batch: Batch, cache: Cache | None) -> Tensor:
    """BertModel.forward: three embeddings are added, normalized and dropped out."""
    state = begin(model, batch, cache)
    embedding_output = _bert_embeddings(model, batch, state)
    make_masks(state, embedding_output.dtype, batch.padding, numbered=False)
    state.entering = embedding_output
    return run_layers(model, state)


def _bert_embeddings(model: Model, batch: Batch, state: Pass) -> Tensor:
    """BertEmbeddings.forward, and that of RoBERTa, which counts positions from the tokens that are
    not padding."""
    tape, shape = state.tape, model.shape
    _, positions, types = shape.embeddings
    tape.operation("gather")
    counted = _counted_words(tape, state.tokens) if shape.family == "roberta" else None
    kinds = tape.new(state.queries if counted is None else state.tokens, "int64", "gather")
    inputs_embeds = embed_tokens(model, batch.ids)
    type_embeds = look_up(model.outside, types, kinds.alias(state.tokens))
    embeddings = inputs_embeds + type_embeds
    index = counted or kinds.detach()
    position_embeds = look_up(model.outside, positions, index)
    embeddings = embeddings + position_embeds
    (norm,) = shape.embedding_modules
    assert isinstance(norm, Norm)
    embeddings = normalize(model.outside, norm, embeddings)
    return embeddings.dropout(shape.embedding_dropout)


def _counted_words(tape: Tape, tokens: int) -> Tensor:
    """create_position_ids_from_input_ids of RoBERTa: `(cumsum(mask).type_as(mask) + past) * mask`
    of the int32 mask of tokens that are not padding, as int64, plus the index of padding."""
    tape.operation("cumsum")
    unequal = tape.new(tokens, "bool", "cumsum")
    _mask = tape.new(tokens, "int32", "cumsum")
    del unequal
    for dtype in ("int64", "int32", "int32", "int32"):  # sums, cast, plus past, times mask
        _last = tape.new(tokens, dtype, "cumsum")
    _long = tape.new(tokens, "int64", "cumsum")
    return tape.new(tokens, "int64", "cumsum")


#: Families whose backbone differs from Llama's.
BACKBONES: Final[dict[str, Callable[[Model, Batch, Cache | None], Tensor]]] = {
    "gpt2": gpt2, "gpt_bigcode": gpt2, "opt": opt, "bert": bert, "roberta": bert,
}  # fmt: skip
