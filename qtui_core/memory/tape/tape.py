"""A tape of a run: tensors that have sizes but no values, allocated and freed like the real ones.

Nothing is computed. A `Tensor` knows its number of elements, its dtype, and the `Buffer` with its
bytes. A buffer writes ALLOCATE to the recording when it is made and FREE when the last reference to
it is gone. CPython counts references here exactly as in the real program, so code with the same
local variables as a real `forward()` frees the same tensors at the same time.

How to write an operation (tensors.py, operations.py). Most are one kernel each way, a
row of `Tensor.op`. Any other is a function of its tensors, whose tape is that of the first:

    def silu(x: Tensor) -> Tensor:
        tape, elements, dtype = x.tape, x.elements, x.dtype

        def backward(gradient: Tensor) -> Gradients:
            return (tape.new(elements, dtype, "silu_backward"),)

        node = tape.node("silu", (x,), backward)      # None if no input requires a gradient
        tape.save(node, x)                            # inputs are saved before the kernel runs,
        output = tape.new(elements, dtype, "silu")    # temporaries of a kernel are locals,
        return tape.output(node, output)              # outputs are saved after it

- `backward` takes the gradient of the output and returns those of the inputs, in their order, None
  for an input without one. It must not hold tensors, only numbers. If an input requires no
  gradient, it should not make one: test `x.requires_grad` outside of `backward`. It need not reduce
  what was broadcast nor cast to the input's dtype: the engine does, as the real one
  (validate_outputs).
- An operation that saves nothing does not call `tape.save`: even with no tensors that makes its
  node part of a checkpoint, whose backward pass then runs it again earlier.
- An operation with several outputs takes a list of gradients: `tape.node(..., outputs=3)`, and
  `tape.output(node, tensor, index)`.
- A gradient that is a view of a kernel's result (a transpose, a reshape back to three dimensions)
  is marked `view=True`: the engine then does not add to it in place.
- `backward` finds in `tape.held` the saved buffers that it has to pass on.
- `x.alias(elements)` is a view without a node, for a tensor that is used once. A view that is used
  more than once, or a part of a tensor, needs `x.viewed()`, `x.part(...)` or `x.split(...)`.

How to write a block (blocks/*.py). It is a function of the weights, the spec (model_shape.py) and
tensors, in the order of the real forward() and with its names for locals, because their lifetimes
matter: a parameter that is not rebound, and a frame more, hold what they were passed. `del` what
the real code rebinds or leaves early. `tape.path` is the name of the module whose operations
follow.

Autocast is `tape.autocast`: the 16-bit dtype or None. Operations on its lists call `x.cast_low()`
and `x.cast_high()` on their inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from sys import getrefcount
from typing import Final
from weakref import ref

from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.replay.record import (
    BACKWARD,
    FORWARD,
    LAYER,
    OPERATION,
    OUTSIDE,
    PHASE,
    TURN,
    Event,
    Label,
)
from qtui_core.memory.tape.tensors import (
    Buffer,
    Edge,
    Gradients,
    Node,
    Region,
    StopRecompute,
    Tensor,
)

#: Turns that are built of a loop (folding.py): the first two and the last two differ from others.
BUILT_TURNS: Final = 5
#: The `turn` outside of loops.
NO_TURN: Final = (OUTSIDE, 0)


class Tape:
    """The state of a run: what is recorded, and the current modes.

    Attributes:
        folds: whether few turns of a loop are built.
        events: so far (record.py).
        grad: whether operations make nodes (torch.is_grad_enabled).
        autocast: the dtype of torch.autocast, None outside of it.
        training: whether dropout is active.
        layer: index of the current layer, OUTSIDE for none.
        turn: the index of the current turn of a loop, and how many more the loop has than are
            built.
        path: name of the current module; inside a layer, relative to it.
        held: while a backward function runs, the buffers that its node saved, in order. The
            function must read them before it runs other nodes.
    """

    def __init__(self, *, folds: bool = False) -> None:
        self.folds = folds
        self.events: list[Event] = []
        self.grad = True
        self.autocast: str | None = None
        self.training = True
        self.layer = OUTSIDE
        self.turn = NO_TURN
        self.path = ""
        self.sequence = 0
        self.region: Region | None = None
        self.recomputing: Region | None = None
        # Casts of trained leaves that autocast keeps until it is left, by the leaf's id.
        self.casts: dict[int, Tensor] = {}
        self.held: list[Buffer] = []

    # ------------------------------------------------------------------ marks

    def phase(self, name: str) -> None:
        """A phase begins (record.Phase)."""
        self.events.append((PHASE, name))

    def enter_layer(self, index: int, direction: str = FORWARD) -> None:
        """Work on layer `index` begins; OUTSIDE ends it."""
        self.layer = index
        self.events.append((LAYER, index, direction))

    def leave_layer(self, direction: str = FORWARD) -> None:
        """What follows belongs to no layer."""
        self.enter_layer(OUTSIDE, direction)

    def turns(self, count: int) -> Iterator[None]:
        """The turns of a loop in a layer, which do the same for tensors of the same sizes; only few
        if the tape `folds`."""
        more = max(0, int(count) - BUILT_TURNS) if self.folds else 0
        for index in range(count - more):
            if more:
                self.enter_turn((index, more))
            yield
        self.enter_turn(NO_TURN)

    def enter_turn(self, turn: tuple[int, int]) -> None:
        """Another turn begins, or what follows belongs to none."""
        if turn != self.turn:
            self.turn = turn
            self.events.append((TURN, *turn))

    def operation(self, name: str) -> None:
        """An operation begins that makes no node."""
        self.events.append((OPERATION, name, self.path))

    # ------------------------------------------------------------------ tensors

    def new(self, elements: int, dtype: str, label: Label | str, view: bool = False) -> Tensor:
        """A tensor with bytes of its own that requires no gradient."""
        return Tensor(elements, dtype, Buffer(self, elements * SIZES[dtype], label), False, view)

    def leaf(self, elements: int, dtype: str, label: Label | str, trained: bool) -> Tensor:
        """A parameter. `trained` is its requires_grad."""
        return Tensor(elements, dtype, Buffer(self, elements * SIZES[dtype], label), trained)

    # ------------------------------------------------------------------ history

    def node(
        self,
        name: str,
        inputs: Iterable[Tensor | None],
        backward: Callable[..., Gradients],
        outputs: int = 1,
    ) -> Node | None:
        """Begins the operation `name`. Returns its node, or None if no input requires a
        gradient."""
        self.events.append((OPERATION, name, self.path))
        if not self.grad:
            return None
        edges: list[Edge | None] = []
        needed = False
        for x in inputs:
            if x is not None and x.requires_grad:
                needed = True
                edges.append((x if x.node is None else x.node, x.index, x.elements, x.dtype))
            else:
                edges.append(None)
        if not needed:
            return None
        self.sequence += 1
        return Node(name, self.sequence, edges, backward, outputs, self.layer, self.turn, self.path)

    def output(self, node: Node | None, x: Tensor, index: int = 0) -> Tensor:
        """`x` as an output of `node`."""
        if node is not None:
            x.requires_grad = True
            x.node = node
            x.index = index
        return x

    def save(self, node: Node | None, *tensors: Tensor | None) -> None:
        """Keeps tensors for the backward function of `node`.

        Inside a checkpoint only their number is kept. When it is recomputed, they are stored, if
        their node still waits for them, and the last of them ends the recomputation (early stop).
        """
        if node is None:
            return
        buffers = [x.buffer for x in tensors if x is not None]
        region = self.recomputing
        if region is not None:
            assert region.recomputed is not None
            for buffer in buffers:
                waits = region.owners[len(region.recomputed)]() is not None
                region.recomputed.append(buffer if waits else None)
                if len(region.recomputed) == region.saved:
                    raise StopRecompute
                node.saved.append(buffer)  # type: ignore[arg-type]
            return
        region = self.region
        if region is None:
            node.saved.extend(buffers)  # type: ignore[arg-type]
            return
        node.region = region
        for _ in buffers:
            node.saved.append(region.saved)  # type: ignore[arg-type]
            region.saved += 1
            region.owners.append(ref(node))


# ---------------------------------------------------------------------- the backward pass
# Nodes run in the order of torch's autograd engine; and gradient checkpointing runs parts of the
# forward pass again in it.
#
# The rules (torch/csrc/autograd: engine.cpp, input_buffer.cpp, functions/accumulate_grad.h):
# - The node created last runs first. A leaf takes over its gradient at once, without a copy unless
#   something else holds it.
# - The gradients that a node receives, and what it saved, live until it has returned and its
#   results have been reduced and cast to the sizes and dtypes of its inputs. What a checkpoint
#   recomputed for it is released when it returns.
# - A second gradient for the same tensor is added in place if nothing else holds the first and it
#   is no view; otherwise a sum is allocated.
#
# Non-reentrant checkpointing (torch.utils.checkpoint): the forward pass of a region runs as usual,
# but its saved tensors are dropped and only counted. When the backward pass first needs one of
# them, the region runs again from its inputs and stores the saved tensors in the same order. With
# the last one it stops (early stop): before the kernel of the operation, if what it saves is an
# input. Each recomputed tensor is released as its operation takes it; the inputs live until the
# last operation that saved something has run.
#
# Reentrant (the default of the Trainer in transformers 4): a region runs without gradients and
# keeps only its input. In the backward pass it runs again, to its end, from that input detached
# from the graph; then a backward pass of its own runs through it, while its output is held. Nothing
# is released before its node has run.

#: The reference count of a gradient that only its slot holds: the slot, the local that names it,
#: and the argument of getrefcount; and of its buffer: the tensor and that argument.
_OWN_TENSOR: Final = 3
_OWN_BUFFER: Final = 2

#: Gradients that have arrived, one for each output of a node.
Slots = list[Tensor | None]


class _Pass:
    """One backward pass: which nodes wait for how many gradients, and which have arrived."""

    __slots__ = ("arrived", "pending", "ready")

    def __init__(self, root: Node, first: Tensor) -> None:
        self.pending = _dependencies(root)
        self.arrived: dict[Node | Tensor, Slots] = {root: [first]}
        self.ready: list[tuple[int, Node]] = [(-root.sequence, root)]


def backward(tape: Tape, loss: Tensor, gradient: Tensor | None = None) -> None:
    """`loss.backward()`: leaves that require a gradient have it in `grad` afterwards. `gradient` is
    given for an output that is no loss; the caller holds it."""
    root = loss.node
    if root is None:
        return
    before, tape.grad = (tape.grad, tape.path), False
    if gradient is None:
        tape.operation("ones_like")
        gradient = tape.new(1, loss.dtype, "ones_like")
    propagate(tape, root, gradient)
    del gradient  # torch.autograd.backward holds the first gradient until the end
    tape.grad, tape.path = before
    if tape.layer != OUTSIDE:
        tape.leave_layer(BACKWARD)


def propagate(tape: Tape, root: Node, first: Tensor) -> None:
    """Runs all nodes from `root` on, whose output has the gradient `first`. A node that recomputes
    a region calls this within a backward pass."""
    before, turn, tape.grad = (tape.grad, tape.path), tape.turn, False
    events = tape.events
    state = _Pass(root, first)
    del root, first
    layer = tape.layer
    while state.ready:
        node = heappop(state.ready)[1]
        if node.layer != layer:
            layer = tape.layer = node.layer
            events.append((LAYER, layer, BACKWARD))
        if node.turn != tape.turn:
            tape.enter_turn(node.turn)
        tape.path = node.module
        events.append((OPERATION, f"{node.name}_backward", node.module))
        _visit(tape, state, node)
    tape.grad, tape.path = before
    tape.enter_turn(turn)


def _dependencies(root: Node) -> dict[Node | Tensor, int]:
    """How many gradients each node and leaf must wait for."""
    pending: dict[Node | Tensor, int] = {}
    unseen = [root]
    while unseen:
        for edge in unseen.pop().edges:
            if edge is not None:
                target = edge[0]
                if target in pending:
                    pending[target] += 1
                else:
                    pending[target] = 1
                    if type(target) is Node:
                        unseen.append(target)
    return pending


def _visit(tape: Tape, state: _Pass, node: Node) -> None:
    """Runs one node and passes its results on."""
    results = _run(tape, node, state.arrived.pop(node))
    pending, arrived = state.pending, state.arrived
    leaves: list[Tensor] = []
    for position, edge in enumerate(node.edges):
        if edge is None:
            continue
        target, index, _, _ = edge
        gradient = results[position]
        results[position] = None
        waiting = arrived.get(target)
        if waiting is None:
            outputs = target.outputs if type(target) is Node else 1
            waiting = arrived[target] = [None] * outputs
        if gradient is not None:
            if waiting[index] is None:
                waiting[index] = gradient
            else:
                _accumulate(tape, waiting, index)
            gradient = None
        pending[target] -= 1
        if not pending[target]:
            if type(target) is Node:
                heappush(state.ready, (-target.sequence, target))
            elif type(target) is Tensor:
                leaves.append(target)
    waiting = None
    for leaf in leaves:
        _take_over(tape, leaf, arrived.pop(leaf))


def _run(tape: Tape, node: Node, slots: Slots) -> Slots:
    """The gradients of a node's inputs, from those of its outputs, which live until it returns."""
    region = node.region
    if region is None:
        tape.held = node.saved  # type: ignore[assignment]
        results = _call(node, slots)
    else:
        tape.held = _recomputed(tape, region, node.saved)  # type: ignore[arg-type, assignment]
        del region
        results = _call(node, slots)
    tape.held = []
    for position, edge in enumerate(node.edges):
        if edge is None:
            results[position] = None
            continue
        gradient = results[position]
        if gradient is None:
            continue
        if gradient.elements > edge[2]:
            leaf = type(edge[0]) is Tensor  # sum_to drops dimensions before those of a weight
            gradient = results[position] = tape.new(edge[2], gradient.dtype, "sum", leaf)
        if gradient.dtype != edge[3]:
            results[position] = tape.new(edge[2], edge[3], "_to_copy")
    node.saved = []
    node.region = None
    return results


def _call(node: Node, slots: Slots) -> Slots:
    if node.outputs > 1:
        return list(node.backward(slots))
    gradient = slots[0]
    return [None] * len(node.edges) if gradient is None else list(node.backward(gradient))


def _accumulate(tape: Tape, waiting: Slots, index: int) -> None:
    """Adds a second gradient to the one that waits."""
    first = waiting[index]
    assert first is not None
    alone = getrefcount(first) == _OWN_TENSOR and getrefcount(first.buffer) == _OWN_BUFFER
    if first.view or not alone:
        waiting[index] = tape.new(first.elements, first.dtype, "add")


def _take_over(tape: Tape, leaf: Tensor, slots: Slots) -> None:
    """Gives a leaf its gradient (AccumulateGrad); if it has one, adds in place."""
    gradient = slots.pop()
    if gradient is None or leaf.grad is not None:
        return
    if getrefcount(gradient) > _OWN_TENSOR - 1:
        gradient = tape.new(gradient.elements, gradient.dtype, "clone")
    leaf.grad = gradient


def checkpoint(tape: Tape, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """`function(*inputs)`, of which only the inputs are kept for the backward pass.

    `function` must not hold tensors that should be freed earlier: its closure lives as long as the
    region. Without gradients it is an ordinary call.
    """
    if not tape.grad or tape.recomputing is not None:
        return function(*inputs)
    outer = tape.region
    tape.region = Region(function, inputs, tape.autocast, tape.layer)
    try:
        return function(*inputs)
    finally:
        tape.region = outer


def checkpoint_reentrant(tape: Tape, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function(x)`, of which only `x` is kept for the backward pass (CheckpointFunction)."""
    if not tape.grad:
        return function(x)
    elements, dtype, autocast = x.elements, x.dtype, tape.autocast

    def backward(gradient: Tensor) -> Gradients:
        leaf = Tensor(elements, dtype, tape.held[0], requires_grad=True)
        output = _run_again(tape, function, (leaf,), autocast)
        assert output is not None
        assert output.node is not None
        propagate(tape, output.node, gradient)
        return (leaf.grad,)

    node = tape.node("CheckpointFunction", (x,), backward)
    tape.save(node, x)
    before, tape.grad = tape.grad, False
    result = function(x)
    tape.grad = before
    return tape.output(node, result)


def _recomputed(tape: Tape, region: Region, numbers: list[int]) -> list[Buffer | None]:
    """What a node of a region saved, taken out of the region; recomputed on the first call."""
    if region.recomputed is None:
        region.recomputed = []
        _run_again(tape, region.function, region.inputs, region.autocast, region)
    recomputed = region.recomputed
    taken = [recomputed[number] for number in numbers]
    for number in numbers:
        recomputed[number] = None
    return taken


def _run_again(
    tape: Tape,
    function: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    autocast: str | None,
    region: Region | None = None,
) -> Tensor | None:
    """Runs a region with gradients, under the autocast of before, with a cache of casts of its own.
    With a `region` it ends as soon as that has recomputed everything that was saved."""
    before = tape.recomputing, tape.region, tape.autocast, tape.casts, tape.grad, tape.path
    turn = tape.turn
    tape.recomputing, tape.region, tape.grad, tape.path = region, None, True, ""
    tape.autocast, tape.casts = autocast, {}
    tape.enter_turn(NO_TURN)
    try:
        return function(*inputs)
    except StopRecompute:
        return None
    finally:
        (tape.recomputing, tape.region, tape.autocast, tape.casts, tape.grad, tape.path) = before
        tape.enter_turn(turn)
