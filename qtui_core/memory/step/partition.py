"""The part of a model on one GPU: its cut of each layer under tensor parallelism, and its layers in
a pipeline, with the order of the work of a stage.

As in torch.distributed.pipelining (PipelineStage in stage.py, Schedule1F1B in schedules.py, torch
2.13), with a step that returns no outputs:

- Of stages 0 to p - 1, stage i runs p - i micro batches forward before the first backward pass;
  then backward and forward passes alternate, the oldest micro batch first.
- What a micro batch receives, from the stage before and as a gradient from the stage after, has a
  buffer of its own, made in the first step and kept.
- A gradient that is sent on stays until the next is sent, and the output of a forward pass, logits
  or hidden states, until the next forward pass has returned (`output` in `_step_microbatches`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import cache
from typing import Any, Final

from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import Component, Label, Phase
from qtui_core.memory.shape.model_shape import Attention, Layer, ModelShape, Moe, Norm, Parameter
from qtui_core.memory.step.backbones import BACKBONES, Batch, Model
from qtui_core.memory.step.forward import forward
from qtui_core.memory.tape.autograd import backward
from qtui_core.memory.tape.tape import Tape
from qtui_core.memory.tape.tensors import Tensor


def parts_of(shape: ModelShape, plan: RunPlan) -> tuple[ModelShape, ...]:
    """The parts of a model, cut for tensor parallelism, that one GPU may have: of the stages of a
    pipeline only those that can be the fullest."""
    return stages_of(cut_shape(shape, plan), plan)


def stages_of(shape: ModelShape, plan: RunPlan) -> tuple[ModelShape, ...]:
    """The pipeline stages that can be the fullest: the first, which has most micro batches at once,
    and the last, which has the logits. Each has as many layers as the longest stage.

    The last stage is without the embedding if that is a plain table; otherwise it is assumed to
    have it.
    """
    if plan.pipeline_parallel == 1:
        return (shape,)
    longest = -(-len(shape.layers) // plan.pipeline_parallel)
    last = replace(shape, layers=shape.layers[len(shape.layers) - longest :])
    first = replace(
        shape,
        layers=shape.layers[:longest],
        final_norm=None,
        head=None,
        head_modules=(),
        tied=False,
        logit_softcap=False,
    )
    if shape.family in BACKBONES or len(shape.embeddings) > 1 or shape.embedding_modules:
        return (first, last)
    received = replace(
        last, embeddings=(), tied=False, embedding_scale=False, embedding_dropout=0.0
    )
    return (first, received)


def cut_shape(shape: ModelShape, plan: RunPlan) -> ModelShape:
    """The cut of the model that one GPU works on under tensor parallelism.

    Tensor parallelism divides heads: the columns of the projections into them and the rows of the
    projections back; and the same in the MLP. Norms stay whole. It also divides the vocabulary of
    the embedding and of the output layer, if the plan of the class does (`_tp_plan`).
    """
    ways = plan.tensor_parallel
    if ways == 1:
        return shape

    @cache
    def cut(layer: Layer) -> Layer:
        return replace(layer, attention=_cut(layer.attention, ways), mlp=_cut(layer.mlp, ways))

    shape = _cut_vocabulary(shape, plan)
    return replace(shape, layers=tuple(map(cut, shape.layers)))


def _cut_vocabulary(shape: ModelShape, plan: RunPlan) -> ModelShape:
    """Cuts the rows of the token embedding and the columns of the output layer; the first GPU has
    the most. Losses that take the output layer's weight need all of it."""
    ways = plan.tensor_parallel
    tokens, *others = shape.embeddings
    head = shape.head
    losses = ("stock", "stock-4.48", "in-place", "in-place-4.48")
    if head is None or not shape.tp_plan or (plan.trains and plan.loss not in losses):
        return shape
    if tokens.name.endswith("embed_tokens") and shape.tp_plan != "head":
        tokens = replace(tokens, rows=-(-tokens.rows // ways))
    head = replace(head, outputs=-(-head.outputs // ways))
    return replace(shape, embeddings=(tokens, *others), head=head)


#: Fields of a part of a layer: products whose outputs are divided, those whose inputs are, and
#: numbers that are.
_COLUMNS: Final = ("query", "key", "value", "fused", "query_up", "latent_up", "up", "gate")
_ROWS: Final = ("out", "down")
_COUNTS: Final = ("heads", "kv_heads")


def _cut(part: Any, ways: int) -> Any:
    """The cut of an attention, or of a feed-forward part."""
    cut: dict[str, Any] = {}
    for name in part.__dataclass_fields__:
        value = getattr(part, name)
        if value is None:
            continue
        if name in _COLUMNS:
            cut[name] = replace(value, outputs=value.outputs // ways)
        elif name in _ROWS:
            cut[name] = replace(value, inputs=value.inputs // ways)
        elif name in _COUNTS:
            cut[name] = value // ways
        elif name in ("query_norm", "key_norm") and isinstance(part, Attention):
            cut[name] = _norm(value, part, ways)
        elif name == "sinks":
            cut[name] = replace(value, shape=(part.heads // ways,))
    if isinstance(part, Moe):
        cut["intermediate"] = part.intermediate // ways
        for name in ("stacked", "biases"):
            cut[name] = tuple(_expert(each, part, ways) for each in getattr(part, name))
        cut["shared"] = None if part.shared is None else _cut(part.shared, ways)
    return replace(part, **cut)


def _norm(norm: Norm, attention: Attention, ways: int) -> Norm:
    """The cut of a norm over all heads at once; a norm over one head stays whole."""
    if norm.size == attention.head_dim:
        return norm
    shape = (norm.shape[0] // ways, *norm.shape[1:]) if norm.shape else ()
    return replace(norm, size=norm.size // ways, shape=shape)


def _expert(stacked: Parameter, moe: Moe, ways: int) -> Parameter:
    """The cut of stacked experts, along the dimension that is a multiple of their width and not the
    model's."""
    wide = {moe.intermediate, 2 * moe.intermediate}
    count, *sizes = stacked.shape
    cut = [size // ways if size in wide and size != moe.hidden else size for size in sizes]
    if cut == sizes:  # the model is as wide: cut by position instead
        index = 0 if "down" not in stacked.name else len(sizes) - 1
        cut[index] //= ways
    return replace(stacked, shape=(count, *cut))


RECEIVED: Final = Label("receive buffer", Component.INPUTS)
#: Micro batches that are recorded after the first backward pass: the last of them finds the
#: allocator as all later ones do.
_IN_TURN: Final = 2


def in_flight(shape: ModelShape, plan: RunPlan) -> int:
    """Micro batches that a stage has run forward at the first backward pass."""
    return 1 if shape.head is not None else min(plan.pipeline_parallel, plan.accumulation)


class Stage:
    """What one stage keeps from step to step, and its work in a step."""

    def __init__(self, tape: Tape, model: Model, batch: Batch) -> None:
        self.model = model
        self.batch = batch
        plan, shape = model.plan, model.shape
        self._count = plan.accumulation
        receives, sends = not shape.embeddings, shape.head is None
        self._inputs = self._buffers(tape) if receives else []
        self._gradients = self._buffers(tape) if sends else []

    def step(self, tape: Tape) -> None:
        """The forward and backward passes of a step, for as many micro batches as it takes until
        all later ones are alike."""
        first = in_flight(self.model.shape, self.model.plan)
        count = min(self._count, first + _IN_TURN)
        waiting: deque[Tensor] = deque()
        output: tuple[Tensor, ...] = ()
        for number in range(first):
            output = self._forward(tape, number)
            waiting.append(output[0])
        sent: Tensor | None = None
        for number in range(count):
            begun = waiting.popleft()
            tape.phase(Phase.BACKWARD)
            backward(tape, begun, self._gradients[number] if self._gradients else None)
            del begun
            if self._inputs:
                sent, self._inputs[number].grad = self._inputs[number].grad, None
            if first + number < count:
                output = self._forward(tape, first + number)
                waiting.append(output[0])
        del sent, output

    def _forward(self, tape: Tape, number: int) -> tuple[Tensor, ...]:
        tape.phase(Phase.FORWARD)
        batch = self.batch
        if self._inputs:
            batch = replace(batch, received=self._inputs[number])
        output, others = forward(self.model, batch)
        del batch
        assert output is not None
        return (output, *others)

    def _buffers(self, tape: Tape) -> list[Tensor]:
        return [_buffer(tape, self.model, self.batch) for _ in range(self._count)]


def received(tape: Tape, model: Model, batch: Batch) -> Batch:
    """The batch that a stage gets in an inference."""
    return batch if model.shape.embeddings else replace(batch, received=_buffer(tape, model, batch))


def _buffer(tape: Tape, model: Model, batch: Batch) -> Tensor:
    """A buffer for the hidden states of a batch, or their gradient."""
    elements = batch.ids.elements * model.shape.hidden
    return tape.leaf(elements, stream_of(model.plan), RECEIVED, model.plan.trains)


def stream_of(plan: RunPlan) -> str:
    """The dtype of hidden states between layers, which is that of the embedding."""
    assert plan.dtype is not None
    return "fp32" if plan.kbit_prep == "all" else plan.dtype
