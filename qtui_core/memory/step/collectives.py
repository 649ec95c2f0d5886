"""Rewrites the recording of a whole model into that of one of several GPUs that share it.

Weights, gradients and optimizer states are replaced by shards. Around each layer its parameters are
gathered, and after its backward pass its gradients are reduced to shards, in the order of torch's
fully_shard (FSDP2: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py and
_fsdp_collectives.py):

- An all-gather fills one buffer from all GPUs, and then one buffer for each parameter. In the
  forward pass the first buffer is kept until the next layer has its parameters, that of the last
  layer until the loss is computed. In the backward pass it is freed at once, and the all-gather of
  the next layer begins before the work on the current one.
- Parameters are freed after a layer's forward pass and again after its backward pass. Those outside
  of layers stay from the beginning of the forward pass to the end of the backward pass.
- A reduce-scatter fills one buffer with the whole gradients of the layer, frees these, and fills
  another with their shards; the first buffer is kept until the next layer's reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.curve import read_peaks
from qtui_core.memory.replay.record import (
    ALLOCATE,
    BACKWARD,
    FORWARD,
    FREE,
    LAYER,
    OPERATION,
    OUTSIDE,
    PHASE,
    Component,
    Event,
    Label,
    Phase,
    Recording,
)
from qtui_core.memory.replay.timeline import by_lifetime
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.shape.storage import StoredTensor
from qtui_core.memory.shape.weights import WeightBlock, blocks_of
from qtui_core.memory.step.optimizer import states_of
from qtui_core.memory.step.partition import parts_of
from qtui_core.memory.step.sharding import (
    gradient_buckets,
    is_sharded,
    paged_bytes,
    shard_of,
    updated,
)

GATHERED: Final = Label("all_gather buffer", Component.TEMPORARIES)
WHOLE: Final = Label("gathered parameter", Component.WEIGHTS)
REDUCED_FROM: Final = Label("reduce_scatter buffer", Component.TEMPORARIES)
REDUCED_TO: Final = Label("sharded gradients", Component.GRADIENTS)
BUCKET: Final = Label("DistributedDataParallel bucket", Component.GRADIENTS)

#: Phases whose layer sections gather and reduce nothing.
_STANDING: Final = (Phase.LOAD, Phase.PREPARE)


def record_on_one_gpu(
    shape: ModelShape, plan: RunPlan, record: Callable[[ModelShape, RunPlan], Recording]
) -> Recording:
    """The recording of the GPU that holds most, among those that share a run of `plan`, which has a
    value for every option. `record` makes the recording of one GPU with a whole model, or with a
    stage of it."""
    recordings = []
    for part in parts_of(shape, plan):
        recording = record(part, plan)
        events, paged = recording.events, 0
        if plan.data_parallel > 1 or plan.pages:
            blocks = blocks_of(part, plan)
            paged = paged_bytes(blocks, plan) if plan.pages else 0
            if plan.data_parallel > 1:
                events = tuple(_Rewriter(part, blocks, plan).rewrite(events))
        recordings.append(Recording(events, recording.origin, paged))
    if len(recordings) == 1:
        return recordings[0]
    return max(recordings, key=lambda recording: read_peaks(recording.events).bytes)


class Unit:
    """Parameters that are gathered and reduced together: those of a layer, or all outside of
    layers.

    Attributes:
        tensors: by name.
        wholes: bytes of each gathered parameter, padded to equal shards.
        reduced: bytes of the whole gradients, padded in the same way.
        states: bytes of each optimizer state, by its name.
        gathered: ids of the buffers that now hold the whole parameters.
        pending: ids of whole gradients that wait for their reduce-scatter.
        gradients: id of the sharded gradients, None before the first reduce-scatter.
        awaited: how many gradients of the recording they replace.
        buffer: id of an all-gather that is not yet copied to the parameters.
    """

    def __init__(self, tensors: Sequence[StoredTensor], plan: RunPlan) -> None:
        ways = plan.data_parallel
        self.tensors = {tensor.name: tensor for tensor in tensors}
        cut = [t for t in tensors if is_sharded(t, plan)] if plan.zero == 3 else []
        self.wholes = [shard_of(t, ways).bytes * ways for t in cut]
        trained = [t for t in tensors if t.requires_grad]
        self.reduced = sum(shard_of(t, ways).bytes * ways for t in trained)
        self.states = {
            state.name: state.bytes for t in trained for state in states_of(updated(t, plan), plan)
        }
        self.gathered: list[int] = []
        self.pending: list[int] = []
        self.gradients: int | None = None
        self.awaited = 0
        self.buffer: int | None = None


def units_of(shape: ModelShape, blocks: Sequence[WeightBlock], plan: RunPlan) -> dict[int, Unit]:
    """The units by the index of their layer, those of an encoder first, as in a recording."""
    outside, *others = blocks
    places = {prefix: block.tensors for block in others for prefix in block.prefixes}
    prefixes = [f"{shape.encoder_prefix}.{i}" for i in range(len(shape.encoder))]
    prefixes += [f"{shape.layer_prefix}.{i}" for i in range(len(shape.layers))]
    units = {index: Unit(places[prefix], plan) for index, prefix in enumerate(prefixes)}
    units[OUTSIDE] = Unit(outside.tensors, plan)
    return units


class _Rewriter:
    """Reads the events once and writes the new ones."""

    def __init__(self, shape: ModelShape, blocks: tuple[WeightBlock, ...], plan: RunPlan) -> None:
        self.plan = plan
        self.ways = plan.data_parallel
        self.buckets = gradient_buckets(blocks, plan)
        self.units = units_of(shape, blocks, plan)
        self.written: list[Event] = []
        self.last_id = 0
        self.phase = ""
        self.layer = OUTSIDE
        self.direction = FORWARD
        self.operation: Event | None = None
        self.kept_gather: int | None = None
        self.kept_reduction: int | None = None
        self.dropped: set[int] = set()
        self.owners: dict[int, Unit] = {}

    def rewrite(self, events: Sequence[Event]) -> list[Event]:
        parameters = _gradients_of_parameters(events) if self.plan.zero >= 2 else set()
        for event in events:
            kind = event[0]
            if kind == ALLOCATE:
                self._allocated(event, event[1] in parameters)
            elif kind == FREE:
                self._freed(event)
            elif kind == PHASE:
                self._enter_phase(event)
            elif kind == LAYER:
                self._enter_layer(event)
            else:
                if kind == OPERATION:
                    self.operation = event
                self.written.append(event)
        return self.written

    def _allocated(self, event: Event, is_gradient: bool) -> None:
        _, name, nbytes, label = event
        unit = self.units[self.layer]
        if is_gradient:
            unit.pending.append(name)
            unit.awaited += 1
            self.owners[name] = unit
        elif label.component in (Component.WEIGHTS, Component.ADAPTERS):
            nbytes = self._shard_bytes(unit, label.what, nbytes)
        elif label.component == Component.OPTIMIZER:
            nbytes = unit.states.get(label.what, 0) if self.plan.zero else nbytes
        elif self.phase == Phase.OPTIMIZER and self.plan.zero:
            nbytes = -(-nbytes // self.ways)
        if nbytes or not event[2]:
            self.written.append((ALLOCATE, name, nbytes, label))
        else:
            self.dropped.add(name)

    def _shard_bytes(self, unit: Unit, name: str, nbytes: int) -> int:
        """Bytes of the shard of a tensor of `nbytes`, which may have another dtype than during the
        steps."""
        tensor = unit.tensors.get(name)
        if self.plan.zero < 3 or tensor is None or not is_sharded(tensor, self.plan):
            return nbytes
        shard = shard_of(tensor, self.ways).elements
        each, rest = divmod(int(nbytes), int(tensor.elements))
        return shard * nbytes // tensor.elements if rest else shard * each

    def _freed(self, event: Event) -> None:
        name = event[1]
        if name in self.dropped:
            self.dropped.remove(name)
        elif name in self.owners:
            unit = self.owners.pop(name)
            unit.awaited -= 1
            if not unit.awaited and unit.gradients is not None:
                self._free(unit.gradients)
                unit.gradients = None
        else:
            self.written.append(event)

    def _enter_phase(self, event: Event) -> None:
        before, self.phase = self.phase, str(event[1])
        self._leave_layer()
        outside = self.units[OUTSIDE]
        if before == Phase.BACKWARD:
            self._reduce(outside)
            self._free_whole(outside)
        if self.phase in (Phase.BACKWARD, Phase.BETWEEN) or before == Phase.BACKWARD:
            self._release_buffers()
        self.written.append(event)
        if self.phase == Phase.FORWARD:
            if before == Phase.PREPARE:
                for nbytes in self.buckets:
                    self._allocate(nbytes, BUCKET)
            self._gather(outside)
        self.layer, self.direction = OUTSIDE, FORWARD

    def _enter_layer(self, event: Event) -> None:
        _, index, direction = event
        if (index, direction) != (self.layer, self.direction):
            self._leave_layer()
            self.layer, self.direction = index, direction
            self.written.append(event)
            if index != OUTSIDE and self.phase not in _STANDING:
                self._begin_layer(index, direction)
        else:
            self.written.append(event)

    def _begin_layer(self, index: int, direction: str) -> None:
        if direction == FORWARD and self.phase == Phase.FORWARD:
            self._gather(self.units[index])
        elif direction == BACKWARD:
            self._gather(self.units[index], backward=True)
            before = self.units.get(index - 1)
            if before is not None and index > 0:
                self._begin_gather(before)

    def _leave_layer(self) -> None:
        """The events after the work on the current layer."""
        if self.layer == OUTSIDE:
            return
        unit = self.units[self.layer]
        self._free_whole(unit)
        if self.direction == BACKWARD:
            self._reduce(unit)
        self.layer = OUTSIDE

    def _begin_gather(self, unit: Unit) -> None:
        if unit.buffer is None and not unit.gathered and unit.wholes:
            self._collective("all_gather")
            unit.buffer = self._allocate(sum(unit.wholes), GATHERED)

    def _gather(self, unit: Unit, backward: bool = False) -> None:
        if unit.gathered or not unit.wholes:
            return
        self._begin_gather(unit)
        unit.gathered = [self._allocate(nbytes, WHOLE) for nbytes in unit.wholes]
        if self.kept_gather is not None:
            self._free(self.kept_gather)
            self.kept_gather = None
        if backward:
            assert unit.buffer is not None
            self._free(unit.buffer)
        else:
            self.kept_gather = unit.buffer
        unit.buffer = None
        self._resume()

    def _free_whole(self, unit: Unit) -> None:
        for name in unit.gathered:
            self._free(name)
        unit.gathered = []

    def _reduce(self, unit: Unit) -> None:
        if self.plan.zero < 2 or not unit.reduced or self.phase in _STANDING:
            return
        self._collective("reduce_scatter")
        if self.kept_reduction is not None:
            self._free(self.kept_reduction)
        self.kept_reduction = self._allocate(unit.reduced, REDUCED_FROM)
        for name in unit.pending:
            self._free(name)
        unit.pending = []
        shards = self._allocate(unit.reduced // self.ways, REDUCED_TO)
        if unit.gradients is None:
            unit.gradients = shards
        else:  # added to those of earlier micro batches
            self._free(shards)
        self._resume()

    def _release_buffers(self) -> None:
        for name in (self.kept_gather, self.kept_reduction):
            if name is not None:
                self._free(name)
        self.kept_gather = self.kept_reduction = None

    def _allocate(self, nbytes: int, label: Label) -> int:
        """Allocates with a negative id; the ids of the recording are positive."""
        self.last_id -= 1
        self.written.append((ALLOCATE, self.last_id, nbytes, label))
        return self.last_id

    def _free(self, name: int) -> None:
        self.written.append((FREE, name))

    def _collective(self, name: str) -> None:
        self.written.append((OPERATION, name, ""))

    def _resume(self) -> None:
        """Returns to the operation before the collective."""
        if self.operation is not None:
            self.written.append(self.operation)


def _gradients_of_parameters(events: Sequence[Event]) -> set[int]:
    """Ids of the gradients of parameters: what a backward pass leaves for the optimizer."""
    born: set[int] = set()
    found: set[int] = set()
    phase = ""
    for event in events:
        if event[0] == PHASE:
            phase = str(event[1])
        elif event[0] == ALLOCATE and phase == Phase.BACKWARD and event[3].component is None:
            born.add(event[1])
        elif event[0] == FREE and event[1] in born:
            born.remove(event[1])
            if by_lifetime(Phase.BACKWARD, phase) == Component.GRADIENTS:
                found.add(event[1])
    return found | born
