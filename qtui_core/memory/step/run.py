"""A run on the tape: weights are loaded, prepared, and trained or used for some steps, each with a
forward pass and its loss."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from qtui_core.memory.cached import quantized_as
from qtui_core.memory.plan.options import without_logits
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.folding import Fold, NotPeriodic, fold, unfold
from qtui_core.memory.replay.record import EMPTY_CACHE, Component, Event, Label, Phase, Recording
from qtui_core.memory.shape.model_shape import Linear, ModelShape, Norm
from qtui_core.memory.step.backbones import BACKBONES, Batch, Model, decoder
from qtui_core.memory.step.device_events import empties_cache
from qtui_core.memory.step.optimizer import OptimizerOnTape
from qtui_core.memory.tape.blocks.losses import LOGITS, LOSSES, UPCAST, fused_loss, tiled_loss
from qtui_core.memory.tape.blocks.modules import activation, normalize, project
from qtui_core.memory.tape.blocks.state import Cache
from qtui_core.memory.tape.operations import cross_entropy, gathered
from qtui_core.memory.tape.tape import Tape, backward
from qtui_core.memory.tape.tensors import SCALE, Tensor

IDS: Final = Label("input_ids", Component.INPUTS)
PADDING: Final = Label("attention_mask", Component.INPUTS)
IMAGES: Final = Label("images", Component.ACTIVATIONS)
#: Micro batches of a step that are recorded: the second finds gradients, and what a manual loop
#: still holds of the first; the third finds the allocator as all later ones do.
MICRO_BATCHES: Final = 3
#: Layers built on either side of those that stand for others; the next is tried if they are not
#: alike.
_MARGINS: Final = (1, 2, 3)

Read = TypeVar("Read")
Reader = Callable[[Sequence[Event], Sequence[Fold]], Read]


def record_step(
    shape: ModelShape, plan: RunPlan, steps: int = 2, *, steady: bool = False
) -> Recording:
    """The events of a run of `steps` steps, from its load on. Every option of the plan has a value
    (run_plan.resolve). `steady`: the optimizer states exist before the first step.

    Else they exist from the second step on, so the second is the first that is like all later ones.
    Only as many layers are built as show the pattern; the events of the others are copies.
    """
    return Recording(read_step(unfold, shape, plan, steps, steady=steady), "tape", steady=steady)


def read_step(
    read: Reader[Read], shape: ModelShape, plan: RunPlan, steps: int, *, steady: bool
) -> Read:
    """What `read` returns for the events of such a run and how its layers were folded."""
    enabled = gc.isenabled()
    gc.disable()  # tapes have no cycles, and it would search tens of thousands of events each time
    try:
        for margin in (each for each in _MARGINS if each >= (shape.own_layers or 0)):
            few, row = fold(shape, margin)
            recording = record_all(few, plan, steps, steady=steady, folds=margin == 1)
            try:
                return read(recording.events, (row,))
            except NotPeriodic:
                continue
        return read(record_all(shape, plan, steps, steady=steady).events, ())
    finally:
        if enabled:
            gc.enable()


def record_all(
    shape: ModelShape, plan: RunPlan, steps: int = 2, *, steady: bool = False, folds: bool = False
) -> Recording:
    """The events of such a run with every layer built, and unless it `folds` every turn of a
    loop."""
    tape = Tape(folds=folds)
    model = Model(shape, plan)
    _load(tape, model)
    held = _train(tape, model, steps, steady) if plan.trains else _infer(tape, model)
    recording = Recording(tuple(tape.events), "tape", steady=steady)
    del held  # what the run still holds at its end is not freed in the recording
    return recording


def _load(tape: Tape, model: Model) -> None:
    tape.phase(Phase.LOAD)
    layers = model.shape.layer_prefix
    for weights in model.sweep(tape):
        weights.load(tape, layers if weights is model.outside else "")
    model.outside.load(tape, layers, after=True)
    tape.phase(Phase.PREPARE)
    for weights in model.sweep(tape):
        weights.raise_types(tape)
    if model.plan.kbit_prep == "all" and empties_cache(model.plan.torch):
        tape.events.append((EMPTY_CACHE,))  # prepare_model_for_kbit_training of peft
    for weights in model.sweep(tape):
        weights.adapt(tape)


def _unpack(tape: Tape, model: Model) -> None:
    """What the first forward pass unpacks permanently, before anything else."""
    groups = (model.outside, *model.layers)
    if any(s.loaded_shape is not None for weights in groups for s in weights.stored):
        tape.phase(Phase.FORWARD)
        for weights in model.sweep(tape):
            weights.unpack(tape)


def _train(tape: Tape, model: Model, steps: int, steady: bool) -> object:
    """Training steps, as in the Trainer or written by hand. In the latter, the last outputs, and
    with them the graph, live until the step returns. Returns what is held at the end."""
    plan = model.plan
    batch = _batch(tape, plan, plan.tokens, plan.tokens)
    images = _images(tape, model)
    optimizer = OptimizerOnTape(model)
    if steady:
        tape.phase(Phase.BETWEEN)
        optimizer.begin(tape)
    outputs: tuple[Tensor | Cache | None, ...] | None = None
    stage = Stage(tape, model, batch) if plan.pipeline_parallel > 1 else None
    _unpack(tape, model)
    for _ in range(steps):
        if stage is not None:
            stage.step(tape)
        for _ in range(min(plan.accumulation, MICRO_BATCHES) if stage is None else 0):
            tape.phase(Phase.FORWARD)
            # The Trainer asks for no cache, and checkpointing allows none; otherwise the class of
            # a decoder makes one in training too.
            without = plan.loop == "trainer" or plan.checkpointing or model.shape.is_encoder
            cache = None if without else Cache()
            loss, others = forward(model, batch, cache)
            outputs = None if plan.loop == "trainer" else (loss, *others, cache)
            del others, cache
            assert loss is not None
            if plan.accumulation > 1:
                loss = loss * SCALE  # loss / accumulation
            tape.phase(Phase.BACKWARD)
            backward(tape, loss)
            del loss
        tape.phase(Phase.OPTIMIZER)
        optimizer.step(tape)
        for weights in model.sweep(tape):
            for _, tensor in weights.trained():
                tensor.grad = None
        outputs = None
        tape.phase(Phase.BETWEEN)
    return batch, images, optimizer, outputs, stage


def _infer(tape: Tape, model: Model) -> object:
    """A prefill, which gives the first token. If more are generated, also the forward pass for the
    last of them, which sees the token before it and a cache of all earlier ones. Returns what is
    held at the end.

    The cache grows by one token at a time (DynamicCache): in each layer the old and the new tensor
    exist together while one is copied to the other.
    """
    plan = model.plan
    tape.grad = False
    tape.training = False
    prompt = received(tape, model, _batch(tape, plan, plan.tokens, plan.tokens))
    images = _images(tape, model)
    _unpack(tape, model)
    cache = None if model.shape.is_encoder else Cache(stored=quantized_as(plan))
    tape.phase(Phase.FORWARD)
    forward(model, prompt, cache)
    if plan.generate > 1 and cache is not None:
        tape.phase(Phase.FORWARD)
        cache.lengthen(tape, cache.length + plan.generate - 2)
        seen = plan.batch * (plan.sequence + plan.generate - 1)
        forward(model, received(tape, model, _batch(tape, plan, plan.batch, seen)), cache)
    tape.phase(Phase.BETWEEN)
    return prompt, images, cache


def _batch(tape: Tape, plan: RunPlan, tokens: int, seen: int) -> Batch:
    """Token ids, which are the labels too, and the mask of padded sequences over all `seen`."""
    ids = tape.new(tokens, "int64", IDS)
    return Batch(ids, ids, tape.new(seen, "int64", PADDING) if plan.padding_mask else None)


def _images(tape: Tape, model: Model) -> Tensor | None:
    """What a step holds of images: float32 patches and int64 places of these, int64 masks and
    kinds of tokens, and features, which are an output."""
    plan, tower = model.plan, model.shape.tower
    if tower is None or not plan.image_tokens:
        return None
    each = tower.sizes["patches"] * (tower.sizes["pixels"] + 4) + model.shape.hidden
    return tape.new(plan.batch * plan.image_tokens * each + 4 * plan.tokens, "fp32", IMAGES)


def forward(
    model: Model, batch: Batch, cache: Cache | None = None
) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """`LlamaForCausalLM.forward`, in the phases forward and loss, under the autocast of the plan.
    Returns the loss, and what else its output holds: the logits, unless the loss is computed
    without them. In inference the loss is None; a pipeline stage without a head returns the hidden
    states that it sends on instead."""
    tape, plan = batch.ids.tape, model.plan
    tape.autocast = plan.autocast_dtype if plan.autocast else None
    output = _forward(model, batch, cache)
    tape.autocast, tape.casts = None, {}
    return output


def _forward(
    model: Model, batch: Batch, cache: Cache | None
) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    tape = batch.ids.tape
    shape, plan = model.shape, model.plan
    hidden = BACKBONES.get(shape.family, decoder)(model, batch, cache)
    if shape.head is None:  # the next stage goes on, or nothing does
        return (hidden, ()) if plan.trains else (None, (hidden,))
    if plan.trains and without_logits(plan.loss) and not shape.is_encoder:
        tape.phase(Phase.LOSS)
        return _loss_without_logits(model, hidden, batch), ()
    logits = _head(model, hidden)
    if not plan.trains:
        return None, (logits,)
    tape.phase(Phase.LOSS)
    sequences = batch.ids.elements // plan.sequence
    if shape.is_encoder:  # logits keep their dtype, labels are not shifted
        return cross_entropy(logits, batch.labels), (logits,)
    if plan.loss == "in-place":  # before 4.46 forward() itself casts logits to float32
        logits = logits.to("fp32", UPCAST)
    return LOSSES[plan.loss](logits, batch.labels, sequences), (logits,)


def _loss_without_logits(model: Model, hidden: Tensor, batch: Batch) -> Tensor:
    """The losses that take the head's weight instead of its output."""
    shape, plan = model.shape, model.plan
    spec = shape.head
    assert spec is not None
    name = shape.embeddings[0].name if shape.tied else spec.name
    table = model.outside[f"{name}.weight"]
    sequences = batch.ids.elements // plan.sequence
    if plan.loss == "tiled":
        return tiled_loss(hidden, table, batch.labels, sequences, spec.inputs)
    return fused_loss(hidden, table, batch.labels, sequences, spec.inputs)


def _head(model: Model, hidden: Tensor) -> Tensor:
    """Logits of all tokens; in inference only of the last token of each sequence (generate)."""
    shape = model.shape
    spec = shape.head
    assert spec is not None  # check_against refuses models without a head
    if shape.is_encoder:  # BertPredictionHeadTransform.forward, and the same in RobertaLMHead
        dense, norm = shape.head_modules[:2]
        assert isinstance(dense, Linear)
        assert isinstance(norm, Norm)
        hidden = project(model.outside, dense, hidden)
        hidden = activation(shape.head_activation, hidden)
        hidden = normalize(model.outside, norm, hidden)
    if not model.plan.trains and not shape.is_encoder:
        last = hidden.alias(model.plan.batch * spec.inputs)
        # The last tokens of several sequences are not contiguous in memory.
        if model.plan.batch > 1 and last.elements < hidden.elements:
            spec = replace(spec, bias_apart=True)
        hidden = last
        del last
    table = f"{shape.embeddings[0].name}.weight" if shape.tied else ""
    own = model.outside.linear(spec, table, shape.head_bias)
    logits = project(model.outside, spec, hidden, LOGITS, own)
    if spec.outputs < shape.vocabulary <= spec.outputs * model.plan.tensor_parallel:
        rows = logits.elements // spec.outputs
        logits = gathered(logits, rows * shape.vocabulary, LOGITS)
    if shape.logit_softcap:
        logits = logits * SCALE
        logits = logits.tanh()
        logits = logits * SCALE
    return logits * SCALE if shape.logit_scale else logits


RECEIVED: Final = Label("receive buffer", Component.INPUTS)
#: Micro batches that are recorded after the first backward pass: the last of them finds the
#: allocator as all later ones do.
_IN_TURN: Final = 2


def in_flight(shape: ModelShape, plan: RunPlan) -> int:
    """Micro batches that a stage has run forward at the first backward pass."""
    return 1 if shape.head is not None else min(plan.pipeline_parallel, plan.accumulation)


class Stage:
    """What one stage of a pipeline keeps from step to step, and its work in a step.

    As in torch.distributed.pipelining (PipelineStage in stage.py, Schedule1F1B in schedules.py,
    torch 2.13), with a step that returns no outputs:

    - Of stages 0 to p - 1, stage i runs p - i micro batches forward before the first backward pass;
      then backward and forward passes alternate, the oldest micro batch first.
    - What a micro batch receives, from the stage before and as a gradient from the stage after, has
      a buffer of its own, made in the first step and kept.
    - A gradient that is sent on stays until the next is sent, and the output of a forward pass,
      logits or hidden states, until the next forward pass has returned (`output` in
      `_step_microbatches`).
    """

    def __init__(self, tape: Tape, model: Model, batch: Batch) -> None:
        self.model = model
        self.batch = batch
        shape, each = model.shape, range(model.plan.accumulation)
        receives, sends = not shape.embeddings, shape.head is None
        self._inputs = [_buffer(tape, model, batch) for _ in each if receives]
        self._gradients = [_buffer(tape, model, batch) for _ in each if sends]

    def step(self, tape: Tape) -> None:
        """The forward and backward passes of a step, for as many micro batches as it takes until
        all later ones are alike."""
        first = in_flight(self.model.shape, self.model.plan)
        count = min(self.model.plan.accumulation, first + _IN_TURN)
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
