"""A stage of a pipeline: the order of its work.

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
from typing import Final

from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import Component, Label, Phase
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.step.forward import forward
from qtui_core.memory.step.model import Batch, Model
from qtui_core.memory.tape.autograd import backward
from qtui_core.memory.tape.tape import Tape, Tensor

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
        plan = self.model.plan
        tape.phase(Phase.FORWARD)
        tape.enter_autocast(plan.autocast_dtype if plan.autocast else None)
        batch = self.batch
        if self._inputs:
            batch = replace(batch, received=self._inputs[number])
        output, others = forward(tape, self.model, batch)
        del batch
        tape.leave_autocast()
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
