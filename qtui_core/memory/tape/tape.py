"""A tape of a run: tensors that have sizes but no values, allocated and freed like the real ones.

Nothing is computed. A `Tensor` knows its number of elements, its dtype, and the `Buffer` with its
bytes. A buffer writes ALLOCATE to the recording when it is made and FREE when the last reference to
it is gone. CPython counts references here exactly as in the real program, so code with the same
local variables as a real `forward()` frees the same tensors at the same time.

How to write an operation (operations/*.py). It is a function of the tape and its tensors:

    def silu(tape: Tape, x: Tensor) -> Tensor:
        elements, dtype = x.elements, x.dtype

        def backward(gradient: Tensor) -> Gradients:
            return (tape.new(elements, dtype, SILU_BACKWARD),)

        node = tape.node("silu", (x,), backward)      # None if no input requires a gradient
        tape.save(node, x)                            # inputs are saved before the kernel runs,
        output = tape.new(elements, dtype, SILU)      # temporaries of a kernel are locals,
        return tape.output(node, output)              # outputs are saved after it

- `backward` takes the gradient of the output and returns those of the inputs, in their order, None
  for an input without one. It must not hold tensors, only numbers. If an input requires no
  gradient, it should not make one: test `x.requires_grad` outside of `backward`. It need not reduce
  what was broadcast nor cast to the input's dtype: the engine does, as the real one
  (validate_outputs).
- An operation with several outputs takes a list of gradients: `tape.node(..., outputs=3)`, and
  `tape.output(node, tensor, index)`.
- A gradient that is a view of a kernel's result (a transpose, a reshape back to three dimensions)
  is marked `view=True`: the engine then does not add to it in place.
- `backward` finds in `tape.held` the saved buffers that it has to pass on.
- `tape.alias(x, elements)` is a view without a node, for a tensor that is used once. A view that is
  used more than once, or a part of a tensor, needs operations/views.py.

How to write a block (blocks/*.py). It is a function of the tape, the spec from shape.py, the
weights and tensors, in the order of the real forward() and with its names for locals, because their
lifetimes matter. `del` what the real code rebinds or leaves early. `tape.path` is the name of the
module whose operations follow.

Autocast is `tape.autocast`: the 16-bit dtype or None. Operations on its lists call `tape.cast_low`
and `tape.cast_high` on their inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.replay.record import FORWARD, LAYER, OPERATION, OUTSIDE, PHASE, Event, Label
from qtui_core.memory.tape.tensors import (
    Buffer,
    Edge,
    Gradients,
    Node,
    Region,
    StopRecompute,
    Tensor,
)

TO_COPY: Final = Label("_to_copy")


class Tape:
    """The state of a run: what is recorded, and the current modes.

    Attributes:
        events: so far (record.py).
        grad: whether operations make nodes (torch.is_grad_enabled).
        autocast: the dtype of torch.autocast, None outside of it.
        training: whether dropout is active.
        layer: index of the current layer, OUTSIDE for none.
        path: name of the current module; inside a layer, relative to it.
        names: whether operations are recorded, for readers that need more than sizes.
        held: while a backward function runs, the buffers that its node saved, in order. The
            function must read them before it runs other nodes.
    """

    __slots__ = (
        "autocast",
        "casts",
        "events",
        "grad",
        "held",
        "layer",
        "names",
        "path",
        "recomputing",
        "region",
        "sequence",
        "training",
    )

    def __init__(self, *, names: bool = True) -> None:
        self.events: list[Event] = []
        self.names = names
        self.grad = True
        self.autocast: str | None = None
        self.training = True
        self.layer = OUTSIDE
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

    def operation(self, name: str) -> None:
        """An operation begins that makes no node."""
        if self.names:
            self.events.append((OPERATION, name, self.path))

    # ------------------------------------------------------------------ tensors

    def new(self, elements: int, dtype: str, label: Label, view: bool = False) -> Tensor:
        """A tensor with bytes of its own that requires no gradient."""
        return Tensor(
            elements, dtype, Buffer(self.events, elements * SIZES[dtype], label), False, view
        )

    def leaf(self, elements: int, dtype: str, label: Label, trained: bool) -> Tensor:
        """A parameter. `trained` is its requires_grad."""
        return Tensor(elements, dtype, Buffer(self.events, elements * SIZES[dtype], label), trained)

    def alias(self, x: Tensor, elements: int | None = None) -> Tensor:
        """A view of `x`, or of its first `elements`: the same bytes, the same node. If it is a
        gradient, it is marked as a view."""
        tensor = Tensor(
            x.elements if elements is None else elements, x.dtype, x.buffer, x.requires_grad, True
        )
        tensor.node, tensor.index = x.node, x.index
        return tensor

    def detach(self, x: Tensor) -> Tensor:
        """The same bytes without history."""
        return Tensor(x.elements, x.dtype, x.buffer)

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
        if self.names:
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
        return Node(name, self.sequence, edges, backward, outputs, self.layer, self.path)

    def output(self, node: Node | None, x: Tensor, index: int = 0) -> Tensor:
        """`x` as an output of `node`."""
        if node is not None:
            x.requires_grad = True
            x.node = node
            x.index = index
        return x

    def save(self, node: Node | None, *tensors: Tensor | None) -> None:
        """Keeps tensors for the backward function of `node`.

        Inside a checkpoint only their number is kept. When it is recomputed, they are stored, and
        the last of them ends the recomputation (early stop).
        """
        if node is None:
            return
        region = self.recomputing
        if region is not None:
            assert region.recomputed is not None
            for x in tensors:
                if x is not None:
                    region.recomputed.append(x.buffer)
                    if len(region.recomputed) == region.saved:
                        raise StopRecompute
                    node.saved.append(x.buffer)  # type: ignore[arg-type]
            return
        region = self.region
        if region is None:
            node.saved.extend(x.buffer for x in tensors if x is not None)  # type: ignore[misc]
            return
        node.region = region
        for x in tensors:
            if x is not None:
                node.saved.append(region.saved)  # type: ignore[arg-type]
                region.saved += 1

    # ------------------------------------------------------------------ types

    def to(self, x: Tensor, dtype: str, label: Label = TO_COPY) -> Tensor:
        """`x.to(dtype)`: `x` itself if it has that dtype."""
        if x.dtype == dtype:
            return x
        source = x.dtype

        def backward(gradient: Tensor) -> Gradients:
            return (self.new(gradient.elements, source, TO_COPY),)

        node = self.node("_to_copy", (x,), backward)
        return self.output(node, self.new(x.elements, dtype, label))

    def cast_low(self, x: Tensor) -> Tensor:
        """Autocast's cast of an input of an operation on its 16-bit list. The cast of a trained
        float32 leaf is kept until autocast is left (cached_cast in autocast_mode.cpp)."""
        dtype = self.autocast
        if dtype is None or x.dtype == dtype or x.dtype not in ("fp32", "bf16", "fp16"):
            return x
        if x.dtype != "fp32" or x.node is not None or not x.requires_grad:
            return self.to(x, dtype)
        kept = self.casts.get(id(x))
        if kept is None:
            kept = self.casts[id(x)] = self.to(x, dtype)
        return kept

    def cast_high(self, x: Tensor) -> Tensor:
        """Autocast's cast of an input of an operation on its float32 list."""
        if self.autocast is None or x.dtype not in ("bf16", "fp16"):
            return x
        return self.to(x, "fp32")

    def enter_autocast(self, dtype: str | None) -> None:
        """torch.autocast is entered; None means disabled."""
        self.autocast = dtype

    def leave_autocast(self) -> None:
        """torch.autocast is left: its cached casts are released."""
        self.autocast = None
        self.casts = {}


def wider(a: str, b: str) -> str:
    """The dtype to which two floating-point dtypes are promoted: float32 unless they are the
    same."""
    return a if a == b else "fp32"
