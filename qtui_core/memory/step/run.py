"""A run on the tape: weights are loaded, prepared, and trained or used for some steps."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from qtui_core.memory.cached import quantized_as
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.folding import Fold, NotPeriodic, fold, unfold
from qtui_core.memory.replay.record import EMPTY_CACHE, Component, Event, Label, Phase, Recording
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.shape.weights import StoredTensor
from qtui_core.memory.step.device_events import empties_cache
from qtui_core.memory.step.forward import Batch, Model, forward
from qtui_core.memory.step.optimizer import (
    OptimizerState,
    passes_one_by_one,
    passing_temporaries,
    shared_states,
    states_of,
    step_temporaries,
)
from qtui_core.memory.step.partition import Stage, received
from qtui_core.memory.tape.autograd import backward
from qtui_core.memory.tape.blocks.state import Cache
from qtui_core.memory.tape.tape import Tape
from qtui_core.memory.tape.tensors import SCALE, Buffer, Tensor

IDS: Final = Label("input_ids", Component.INPUTS)
PADDING: Final = Label("attention_mask", Component.INPUTS)
#: Micro batches of a step that are recorded: the second finds gradients, and what a manual loop
#: still holds of the first; the third finds the allocator as all later ones do.
MICRO_BATCHES: Final = 3
#: Layers built on either side of those that stand for others; the next is tried if they are not
#: alike.
_MARGINS: Final = (1, 2, 3)

ROOTS: Final = Label("_foreach_sqrt", Component.TEMPORARIES)

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
        for margin in _MARGINS:
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
    optimizer = _Optimizer(model)
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
    return batch, optimizer, outputs, stage


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
    _unpack(tape, model)
    cache = None if model.shape.is_encoder else Cache(stored=quantized_as(plan))
    tape.phase(Phase.FORWARD)
    forward(model, prompt, cache)
    if plan.generate > 1 and cache is not None:
        tape.phase(Phase.FORWARD)
        cache.lengthen(tape, cache.length + plan.generate - 2)
        seen = plan.batch * (plan.sequence + plan.generate - 1)
        ids = plan.batch
        forward(model, received(tape, model, _batch(tape, plan, ids, seen)), cache)
    tape.phase(Phase.BETWEEN)
    return prompt, cache


def _batch(tape: Tape, plan: RunPlan, tokens: int, seen: int) -> Batch:
    """Token ids, which are the labels too, and the mask of padded sequences over all `seen`."""
    ids = tape.new(tokens, "int64", IDS)
    return Batch(ids, ids, tape.new(seen, "int64", PADDING) if plan.padding_mask else None)


class _Optimizer:
    """The optimizer states, made in the first step, and the temporaries of each step."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.begun = False
        self.states: list[Buffer] = []

    def step(self, tape: Tape) -> None:
        """`optimizer.step()`."""
        if not self.begun:
            self.begin(tape)
        before: list[list[Buffer]] = []
        for dtype in dict.fromkeys(stored.dtype for stored in self._trained()):
            made = [
                [
                    Buffer(tape, temporary.bytes, ROOTS)
                    for temporary in step_temporaries(
                        [s for s, _ in weights.trained() if s.dtype == dtype], self.model.plan
                    )
                ]
                for weights in self.model.sweep(tape)
            ]
            self._release(tape, before)
            before = made
            del made
        self._release(tape, before)
        if passes_one_by_one(self.model.plan):
            self._pass(tape)

    def _pass(self, tape: Tape) -> None:
        """Updates tensors one after the other."""
        for weights in self.model.sweep(tape):
            for stored, _ in weights.trained():
                passing = [
                    Buffer(tape, temporary.bytes, Label(temporary.name, Component.TEMPORARIES))
                    for temporary in passing_temporaries(stored, self.model.plan)
                ]
                passing.clear()

    def begin(self, tape: Tape) -> None:
        """Makes the states."""
        self.begun = True
        plan = self.model.plan
        self._keep(tape, shared_states(self._trained(), plan))
        for weights in self.model.sweep(tape):
            for stored, _ in weights.trained():
                self._keep(tape, states_of(stored, plan))

    def _keep(self, tape: Tape, states: Iterable[OptimizerState]) -> None:
        for state in states:
            if not state.paged:
                label = Label(state.name, Component.OPTIMIZER)
                self.states.append(Buffer(tape, state.bytes, label))

    def _release(self, tape: Tape, buffers: list[list[Buffer]]) -> None:
        """Frees the buffers of each group of weights, in order."""
        if any(buffers):
            for own, _ in zip(buffers, self.model.sweep(tape), strict=True):
                own.clear()

    def _trained(self) -> Iterator[StoredTensor]:
        for weights in (self.model.outside, *self.model.layers):
            yield from (stored for stored, _ in weights.trained())
