"""One of several GPUs that share a run: its part of the model, cut for tensor parallelism and for a
pipeline; and the recording of that part, rewritten for the GPUs that share its weights.

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

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

from qtui_core.memory.dtypes import FLOATING
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.folding import repeated_events
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
    by_lifetime,
)
from qtui_core.memory.replay.timeline import Timeline
from qtui_core.memory.shape.model_shape import Attention, Layer, ModelShape, Moe, Norm, Parameter
from qtui_core.memory.shape.weights import StoredTensor, WeightBlock, blocks_of
from qtui_core.memory.step.backbones import BACKBONES
from qtui_core.memory.step.optimizer import states_of
from qtui_core.memory.step.run import record_step


def stages_of(shape: ModelShape, plan: RunPlan) -> tuple[ModelShape, ...]:
    """The pipeline stages that can be the fullest: the first, which has most micro batches at once,
    and the last, which has the logits. Each has as many layers as the longest stage.

    The last stage is without the embedding if that is a plain table; otherwise it is assumed to
    have it.
    """
    if plan.pipeline_parallel == 1:
        return (shape,)
    longest = -(-len(shape.layers) // plan.pipeline_parallel)
    last = replace(shape, layers=shape.layers[len(shape.layers) - longest :], tower=None)
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


GATHERED: Final = Label("all_gather buffer", Component.TEMPORARIES)
WHOLE: Final = Label("gathered parameter", Component.WEIGHTS)
REDUCED_FROM: Final = Label("reduce_scatter buffer", Component.TEMPORARIES)
REDUCED_TO: Final = Label("sharded gradients", Component.GRADIENTS)
BUCKET: Final = Label("DistributedDataParallel bucket", Component.GRADIENTS)

#: Phases whose layer sections gather and reduce nothing.
_STANDING: Final = (Phase.LOAD, Phase.PREPARE)


def record_on_one_gpu(shape: ModelShape, plan: RunPlan) -> Recording:
    """The recording of the GPU that holds most, among those that share a run of `plan`, which has a
    value for every option."""
    recordings = []
    for part in stages_of(cut_shape(shape, plan), plan):
        recording = record_step(part, plan)
        events, paged = recording.events, 0
        if plan.data_parallel > 1 or plan.pages:
            blocks = blocks_of(part, plan)
            paged = paged_bytes(blocks, plan) if plan.pages else 0
            if plan.data_parallel > 1:
                events = repeated_events(_Rewriter(blocks, plan).rewrite(events))
        recordings.append(replace(recording, events=events, paged_bytes=paged))
    if len(recordings) == 1:
        return recordings[0]
    return max(recordings, key=lambda recording: Timeline(recording.events).most)


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


class _Rewriter:
    """Reads the events once and writes the new ones."""

    def __init__(self, blocks: tuple[WeightBlock, ...], plan: RunPlan) -> None:
        self.plan = plan
        self.ways = plan.data_parallel
        self.buckets = gradient_buckets(blocks, plan)
        # By the index of their layer, as in a recording.
        self.units = {OUTSIDE: Unit(blocks[0].tensors, plan)}
        for block in blocks[1:]:
            for prefix in block.prefixes:
                self.units[int(prefix.rpartition(".")[2])] = Unit(block.tensors, plan)
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
            self._free(self.kept_gather, self.kept_reduction)
            self.kept_gather = self.kept_reduction = None
        self.written.append(event)
        if self.phase == Phase.FORWARD:
            if before == Phase.PREPARE:
                for nbytes in self.buckets:
                    self._allocate(nbytes, BUCKET)
            self._gather(outside)
        self.layer, self.direction = OUTSIDE, FORWARD

    def _enter_layer(self, event: Event) -> None:
        _, index, direction = event
        begins = (index, direction) != (self.layer, self.direction)
        if begins:
            self._leave_layer()
            self.layer, self.direction = index, direction
        self.written.append(event)
        if not begins or index == OUTSIDE or self.phase in _STANDING:
            return
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
            self.written.append((OPERATION, "all_gather", ""))
            unit.buffer = self._allocate(sum(unit.wholes), GATHERED)

    def _gather(self, unit: Unit, backward: bool = False) -> None:
        if unit.gathered or not unit.wholes:
            return
        self._begin_gather(unit)
        unit.gathered = [self._allocate(nbytes, WHOLE) for nbytes in unit.wholes]
        self._free(self.kept_gather)
        self.kept_gather = None if backward else unit.buffer
        if backward:
            self._free(unit.buffer)
        unit.buffer = None
        self._resume()

    def _free_whole(self, unit: Unit) -> None:
        self._free(*unit.gathered)
        unit.gathered = []

    def _reduce(self, unit: Unit) -> None:
        if self.plan.zero < 2 or not unit.reduced or self.phase in _STANDING:
            return
        self.written.append((OPERATION, "reduce_scatter", ""))
        self._free(self.kept_reduction)
        self.kept_reduction = self._allocate(unit.reduced, REDUCED_FROM)
        self._free(*unit.pending)
        unit.pending = []
        shards = self._allocate(unit.reduced // self.ways, REDUCED_TO)
        if unit.gradients is None:
            unit.gradients = shards
        else:  # added to those of earlier micro batches
            self._free(shards)
        self._resume()

    def _allocate(self, nbytes: int, label: Label) -> int:
        """Allocates with a negative id; the ids of the recording are positive."""
        self.last_id -= 1
        self.written.append((ALLOCATE, self.last_id, nbytes, label))
        return self.last_id

    def _free(self, *names: int | None) -> None:
        self.written += [(FREE, name) for name in names if name is not None]

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


#: DistributedDataParallel: the bytes after which a bucket of gradients is closed: the first bucket
#: and the others (torch/nn/parallel/distributed.py, bucket_cap_mb;
#: dist._DEFAULT_FIRST_BUCKET_BYTES).
_FIRST_BUCKET: Final = 1 << 20
_BUCKET: Final = 25 << 20


def is_sharded(tensor: StoredTensor, plan: RunPlan) -> bool:
    """Whether ZeRO-3 shards a tensor: parameters in a floating-point type, and 4-bit weights that
    are packed into one (accelerate/utils/fsdp_utils.py, fsdp2_prepare_model, leaves out other
    Params4bit). Their constants and buffers are not parameters and stay whole on every GPU."""
    if tensor.component not in (Component.WEIGHTS, Component.ADAPTERS):
        return False
    packed = tensor.dtype == "uint8" and plan.four_bits
    return tensor.dtype in FLOATING or (packed and plan.quant_storage in FLOATING)


def shard_of(tensor: StoredTensor, ways: int) -> StoredTensor:
    """The part of a tensor on one of `ways` GPUs: some of its rows; the last parts are padded to
    the length of the first (torch fully_shard, FSDPParam._init_sharded_param)."""
    rows, *rest = tensor.shape or (1,)
    return tensor._replace(shape=(-(-rows // ways), *rest))


def updated(tensor: StoredTensor, plan: RunPlan) -> StoredTensor:
    """The part of a trained tensor that one GPU's optimizer updates."""
    return shard_of(tensor, plan.data_parallel) if plan.zero else tensor


def paged_bytes(blocks: tuple[WeightBlock, ...], plan: RunPlan) -> int:
    """Bytes of optimizer states in managed memory, which are on the GPU only while a step uses
    them."""
    return sum(
        state.bytes * len(block.prefixes)
        for block in blocks
        for tensor in block.tensors
        if tensor.requires_grad
        for state in states_of(updated(tensor, plan), plan)
        if state.paged
    )


def gradient_buckets(blocks: tuple[WeightBlock, ...], plan: RunPlan) -> tuple[int, ...]:
    """Bytes of the buckets in which DistributedDataParallel reduces gradients, which it keeps
    beside them for the whole run (reducer.cpp, compute_bucket_assignment_by_size). Empty if
    gradients are sharded or there is one GPU."""
    if plan.data_parallel == 1 or plan.zero > 1 or not plan.trains:
        return ()
    closed: list[int] = []
    open_buckets: dict[str, int] = {}
    for block in reversed(blocks):
        trained = [t for t in reversed(block.tensors) if t.requires_grad]
        for tensor in trained * len(block.prefixes):
            filled = open_buckets.pop(tensor.dtype, 0) + tensor.bytes
            if filled >= (_BUCKET if closed else _FIRST_BUCKET):
                closed.append(filled)
            else:
                open_buckets[tensor.dtype] = filled
    return (*closed, *open_buckets.values())
