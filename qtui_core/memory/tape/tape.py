"""A tape of a run: tensors that have sizes but no values, allocated and freed like the real ones.

Nothing is computed. A `Tensor` knows its number of elements, its dtype, and the `Buffer` with its
bytes. A buffer writes ALLOCATE to the recording when it is made and FREE when the last reference to
it is gone. CPython counts references here exactly as in the real program, so code with the same
local variables as a real `forward()` frees the same tensors at the same time.

How to write an operation (tensors.py, operations.py, kernels.py). Most are one kernel each way, a
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
from typing import Final
from weakref import ref

from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.replay.record import (
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
