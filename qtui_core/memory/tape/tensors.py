"""Tensors without values, the buffers of their bytes, and the operations that made them. Formulas
of gradients: tools/autograd/derivatives.yaml and torch/csrc/autograd/FunctionsManual.cpp."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Final
from weakref import ReferenceType

from qtui_core.dataclass import dataclass
from qtui_core.memory.replay.record import ALLOCATE, FREE, Label

if TYPE_CHECKING:
    from qtui_core.memory.tape.tape import Tape

#: Numbers of which only that they are numbers matters here.
EPS: Final = 1e-6
SCALE: Final = 0.5


#: Labels of what its lifetime alone says what it is for.
_LABELS: Final[dict[str, Label]] = {}


class Buffer:
    """Bytes that are allocated as long as anything refers to this object. Its id is the number of
    the event that allocates it."""

    __slots__ = ("id", "nbytes", "tape")

    def __init__(self, tape: Tape, nbytes: int, label: Label | str) -> None:
        events = tape.events
        self.tape = tape
        self.nbytes = nbytes
        self.id = len(events)
        if isinstance(label, str):
            label = _LABELS.get(label) or _LABELS.setdefault(label, Label(label))
        events.append((ALLOCATE, self.id, nbytes, label))

    def __del__(self) -> None:
        self.tape.events.append((FREE, self.id))


#: The result of a backward function: a gradient, or None, for each input.
Gradients = tuple["Tensor | None", ...]

#: Where a gradient goes: (node or leaf, which of its outputs, the elements and dtype it must have).
Edge = tuple["Node | Tensor", int, int, str]


class Tensor:
    """A tensor without values. Its operations have the names and the operators of torch's; a number
    may stand for any other, and the size of a result is given where torch is given dimensions.

    Attributes:
        elements: how many.
        dtype: its short name (dtypes.SIZES).
        buffer: holds its bytes; views share it.
        tape: where it is recorded.
        requires_grad: as in torch.
        node: the operation that made it, None for a leaf; `index`: which of its outputs this is.
        view: for a gradient, whether another tensor also holds its bytes (the base of a view), so
            that nothing may be added to it in place.
        grad: for a leaf, its accumulated gradient.
        flat: whether it is a matrix `[tokens, elements]`, not `[sequences, tokens, elements]`: the
            gradient that a product gives for it is then no view.
    """

    def __init__(
        self,
        elements: int,
        dtype: str,
        buffer: Buffer,
        requires_grad: bool = False,
        view: bool = False,
    ) -> None:
        self.elements = elements
        self.dtype = dtype
        self.buffer = buffer
        self.tape = buffer.tape
        self.requires_grad = requires_grad
        self.view = view
        self.node: Node | None = None
        self.index = 0
        self.grad: Tensor | None = None
        self.flat = False

    # ------------------------------------------------------------------ without history

    def alias(self, elements: int | None = None) -> Tensor:
        """A view of the tensor, or of its first `elements`: the same bytes, the same node. If it is
        a gradient, it is marked as a view."""
        size = self.elements if elements is None else elements
        tensor = Tensor(size, self.dtype, self.buffer, self.requires_grad, True)
        tensor.node, tensor.index = self.node, self.index
        return tensor

    def detach(self) -> Tensor:
        """The same bytes without history."""
        return Tensor(self.elements, self.dtype, self.buffer)

    # ------------------------------------------------------------------ one kernel each way

    def op(
        self,
        name: str,
        gradient: Label | str = "",
        elements: int | None = None,
        *,
        own: bool = False,
        saved: Tensor | None = None,
        keeps: bool = False,
        made: Label | str | None = None,
        view: bool = False,
        seen: bool = False,
        steps: tuple[str, ...] = (),
    ) -> Tensor:
        """The operation `name`: one kernel makes its result, one its gradient.

        Args:
            gradient: label of the gradient; without one it is that of the result itself. It has
                this tensor's size, and the dtype of the result's gradient or this tensor's `own`.
            elements: of the result, by default those of this tensor.
            saved: what is saved before the kernel runs.
            keeps: the result is saved.
            made: label of the result, by default the name.
            view: the result is a view of this tensor; `seen`: the gradient is one of its kernel's.
            steps: labels of what other kernels make before the gradient, alive until it is made.
        """
        tape, full, dtype = self.tape, self.elements, self.dtype
        kept = dtype if own else None

        def backward(given: Tensor) -> Gradients:
            _before = [tape.new(full, kept or given.dtype, step) for step in steps]
            return (tape.new(full, kept or given.dtype, gradient, seen),)

        node = tape.node(name, (self,), backward if gradient else _pass)
        if saved is not None:
            tape.save(node, saved)
        size = full if elements is None else elements
        if view:
            return tape.output(node, Tensor(size, dtype, self.buffer, False, True))
        result = tape.new(size, dtype, made or name)
        if keeps:
            tape.save(node, result)
        return tape.output(node, result)

    def from_input(self, name: str) -> Tensor:
        """A function whose gradient one kernel computes from its saved input: silu, gelu..."""
        return self.op(name, f"{name}_backward", own=True, saved=self)

    def from_output(self, name: str) -> Tensor:
        """A function whose gradient one kernel computes from its saved output: relu..."""
        return self.op(name, f"{name}_backward", own=True, keeps=True)

    def tanh(self) -> Tensor:
        return self.from_output("tanh")

    def sigmoid(self) -> Tensor:
        return self.from_output("sigmoid")

    def clone(self) -> Tensor:
        """`x.clone()`, `x.contiguous()` of what is not contiguous, a reshape that must copy."""
        return self.op("clone")

    def mean(self, elements: int) -> Tensor:
        """`x.mean(-1, keepdim=True)`, of `elements`. Its gradient is expanded, then divided into a
        tensor of `x`'s size."""
        return self.op("mean", "div", elements)

    def lookup(self, indices: Tensor, elements: int) -> Tensor:
        """`x[indices]` or `x.gather(1, indices)`, of `elements`. The gradient is added to zeros in
        place (index_backward and value_selecting_reduction_backward of FunctionsManual.cpp)."""
        return self.op("index", "new_zeros", elements, own=True, saved=indices)

    def masked_fill(self, mask: Tensor) -> Tensor:
        """`x.masked_fill(mask, number)`."""
        return self.op("masked_fill", "masked_fill", own=True, saved=mask)

    def clamp(self, limits: int) -> Tensor:
        """`x.clamp(...)` between two limits or below one. Its gradient is zero where `x` was
        outside (clamp_backward of FunctionsManual.cpp)."""
        tape, elements = self.tape, self.elements

        def backward(gradient: Tensor) -> Gradients:
            _zero = tape.new(1, gradient.dtype, "scalar_tensor")
            _inside = [tape.new(elements, "bool", "le") for _ in range(limits)]
            return (tape.new(elements, gradient.dtype, "where"),)

        node = tape.node("clamp", (self,), backward)
        tape.save(node, self)
        return tape.output(node, tape.new(elements, self.dtype, "clamp"))

    # ------------------------------------------------------------------ views

    def part(self, elements: int) -> Tensor:
        """`x[..., a:b]`: a view of `elements` elements. Its gradient has `x`'s size, with zeros
        elsewhere (slice_backward)."""
        return self.op("slice", "slice_backward", elements, view=True)

    def transposed(self) -> Tensor:
        """`x.view(...).transpose(1, 2)`: a view of all of `x`. Its gradient arrives in another
        memory layout, as kernels write heads first and concatenations too, and must be copied to be
        viewed as that of `x`."""
        return self.op("transpose", "clone", view=True)

    def expand(self, elements: int) -> Tensor:
        """`x.expand(...)` to `elements`, a view. Its gradient is summed."""
        return self.op("expand", "sum", elements, view=True)

    def repeat(self, times: int, *, viewed: bool = False) -> Tensor:
        """`repeat_kv`: expanded, then copied by the reshape, which for a single head is `viewed`;
        its gradient is summed. With `times` 1, `x` itself."""
        if times == 1:
            return self
        elements, own = self.elements * times, not viewed
        return self.op("expand", "sum", elements, own=own, made="clone", view=viewed, seen=True)

    def viewed(self) -> Tensor:
        """`x.view(...)`, or `x.reshape(...)` of a contiguous tensor. Its gradient is a view too, to
        which nothing is added in place."""
        tape = self.tape
        node = tape.node("view", (self,), lambda gradient: (gradient.alias(),))
        return tape.output(node, Tensor(self.elements, self.dtype, self.buffer, False, True))

    def split(self, *sizes: int) -> tuple[Tensor, ...]:
        """`x.split(...)`, `x.chunk(...)`: views of `sizes` elements. Their gradients are
        concatenated to that of `x`."""
        tape, full = self.tape, self.elements

        def backward(gradients: list[Tensor | None]) -> Gradients:
            dtype = next(g.dtype for g in gradients if g is not None)
            return (tape.new(full, dtype, "cat"),)

        node = tape.node("split", (self,), backward, outputs=len(sizes))
        dtype, buffer = self.dtype, self.buffer
        return tuple(
            tape.output(node, Tensor(elements, dtype, buffer, False, True), index)
            for index, elements in enumerate(sizes)
        )

    def turned(self, *, copied: bool = False) -> Tensor:
        """`matrix.T` of a parameter. Its gradient is a view. If its layout differs from the
        parameter's, it is `copied` to become the parameter's gradient (clone_obey_contract in
        accumulate_grad.h), unless there is one already to which it is added."""
        tape, matrix = self.tape, self

        def backward(gradient: Tensor) -> Gradients:
            if not copied or matrix.grad is not None:
                return (gradient.alias(),)
            return (tape.new(gradient.elements, gradient.dtype, "clone"),)

        node = tape.node("t", (self,), backward)
        return tape.output(node, Tensor(self.elements, self.dtype, self.buffer, False, True))

    # ------------------------------------------------------------------ dtypes

    def to(self, dtype: str, label: Label | str = "_to_copy") -> Tensor:
        """`x.to(dtype)`: `x` itself if it has that dtype."""
        if self.dtype == dtype:
            return self
        tape, elements, given = self.tape, self.elements, self.dtype
        node = tape.node("_to_copy", (self,), lambda _: (tape.new(elements, given, "_to_copy"),))
        return tape.output(node, tape.new(elements, dtype, label))

    def cast_low(self) -> Tensor:
        """Autocast's cast of an input of an operation on its 16-bit list. The cast of a trained
        float32 leaf is kept until autocast is left (cached_cast in autocast_mode.cpp)."""
        tape, given = self.tape, self.dtype
        dtype = tape.autocast
        if dtype is None or given == dtype or given not in ("fp32", "bf16", "fp16"):
            return self
        if given != "fp32" or self.node is not None or not self.requires_grad:
            return self.to(dtype)
        kept = tape.casts.get(id(self))
        if kept is None:
            kept = tape.casts[id(self)] = self.to(dtype)
        return kept

    def cast_high(self) -> Tensor:
        """Autocast's cast of an input of an operation on its float32 list."""
        if self.tape.autocast is None or self.dtype not in ("bf16", "fp16"):
            return self
        return self.to("fp32")

    # ------------------------------------------------------------------ arithmetic

    def add(self, other: Tensor | float, label: Label | str = "add") -> Tensor:
        """`x + y`; the smaller one is broadcast. A number, as which a tensor of at most `x`'s size
        without a gradient may be written, is no input."""
        if not isinstance(other, Tensor):
            return self.op("add")
        tape = self.tape
        node = tape.node("add", (self, other), _pass_to_both)
        elements = max(self.elements, other.elements)
        return tape.output(node, tape.new(elements, wider(self.dtype, other.dtype), label))

    __add__ = __radd__ = add

    def add_(self, other: Tensor) -> Tensor:
        """`x += y`. If `x` has a narrower dtype, the sum is cast to it in place."""
        node = self.tape.node("add_", (self, other), _pass_to_both)
        return self.tape.output(node, Tensor(self.elements, self.dtype, self.buffer))

    def sub(self, other: Tensor, elements: int | None = None) -> Tensor:
        """`x - y`; the smaller one is broadcast, or both to `elements`. The gradient of the second
        is negated in full before it is reduced."""
        tape, wanted = self.tape, other.requires_grad

        def backward(gradient: Tensor) -> Gradients:
            negative = tape.new(gradient.elements, gradient.dtype, "neg") if wanted else None
            return gradient, negative

        node = tape.node("sub", (self, other), backward)
        size = elements or max(self.elements, other.elements)
        return tape.output(node, tape.new(size, wider(self.dtype, other.dtype), "sub"))

    __sub__ = sub

    def __neg__(self) -> Tensor:
        return self.op("neg", "neg")

    def __mul__(self, other: Tensor | float) -> Tensor:
        """`x * y`; the smaller one is broadcast. Both gradients are made in full before any is
        reduced. A number is a CPU tensor, which the hooks of a checkpoint do not see."""
        if not isinstance(other, Tensor):
            return self.op("mul", "mul")
        tape, elements = self.tape, max(self.elements, other.elements)
        a_type, b_type = self.dtype, other.dtype
        a_wanted, b_wanted = self.requires_grad, other.requires_grad

        def backward(gradient: Tensor) -> Gradients:
            of_b = tape.new(elements, wider(gradient.dtype, a_type), "mul") if b_wanted else None
            of_a = tape.new(elements, wider(gradient.dtype, b_type), "mul") if a_wanted else None
            return of_a, of_b

        node = tape.node("mul", (self, other), backward)
        tape.save(node, self if b_wanted else None, other if a_wanted else None)
        return tape.output(node, tape.new(elements, wider(a_type, b_type), "mul"))

    __rmul__ = __mul__

    def mul_complex(self, table: Tensor) -> Tensor:
        """`x * table` of complex numbers, each counted as two float32 elements. The gradient needs
        a copy of the table's conjugate."""
        tape, elements, numbers = self.tape, self.elements, table.elements

        def backward(gradient: Tensor) -> Gradients:
            _conjugate = tape.new(numbers, "fp32", "clone")
            return (tape.new(elements, "fp32", "mul"),)

        node = tape.node("mul", (self,), backward)
        tape.save(node, table)
        return tape.output(node, tape.new(elements, "fp32", "mul"))

    def div(self, divisor: Tensor, *, inside: bool = False) -> Tensor:
        """`x / divisor`, with the divisor broadcast, or `x /= divisor` if `inside`, for which the
        old `x` is copied. The divisor's gradient, `-gradient * ((x / divisor) / divisor)`, is made
        before that of `x`."""
        tape, elements, dtype = self.tape, self.elements, self.dtype

        def of_divisor() -> Tensor:
            once = tape.new(elements, dtype, "div")
            twice = tape.new(elements, dtype, "div")
            negative = tape.new(elements, dtype, "neg")
            result = tape.new(elements, dtype, "mul")
            del negative, twice, once
            return result

        def backward(gradient: Tensor) -> Gradients:
            second = of_divisor()
            return tape.new(elements, dtype, "div"), second

        node = tape.node("div", (self, divisor), backward)
        if not inside:
            tape.save(node, self, divisor)
            return tape.output(node, tape.new(elements, dtype, "div"))
        if node is not None:
            tape.save(node, tape.new(elements, dtype, "clone"), divisor)
        return tape.output(node, Tensor(elements, dtype, self.buffer))

    # Of what is on autocast's float32 list, nothing but the cast is held: the name is rebound.

    def pow(self, _exponent: float) -> Tensor:
        """`x.pow(c)`; its gradient is `gradient * (c * x.pow(c - 1))`."""
        self = self.cast_high()
        return self.op("pow", "mul", own=True, saved=self, steps=("pow", "mul"))

    def rsqrt(self) -> Tensor:
        """`torch.rsqrt(x)`; its gradient is `-0.5 * gradient * result.pow(3)`."""
        self = self.cast_high()
        return self.op("rsqrt", "mul", own=True, keeps=True, steps=("mul", "pow"))

    def sqrt(self) -> Tensor:
        """`torch.sqrt(x)`; its gradient is `gradient / (2 * result)`."""
        return self.op("sqrt", "div", own=True, keeps=True, steps=("mul",))

    def std(self, elements: int) -> Tensor:
        """`x.std(-1, keepdim=True)`, of `elements`. Its gradient is `2 / n` times the distance from
        the mean times `gradient / (2 * result)` (std_backward of FunctionsManual.cpp)."""
        tape, full, dtype = self.tape, self.elements, self.dtype

        def backward(_: Tensor) -> Gradients:
            twice, _slope = tape.new(elements, dtype, "mul"), tape.new(elements, dtype, "div")
            zero = tape.new(elements, "bool", "eq")
            del zero, twice
            _mean, _distance = tape.new(elements, dtype, "mean"), tape.new(full, dtype, "sub")
            _scaled = tape.new(elements, dtype, "mul")
            return (tape.new(full, dtype, "mul"),)

        node, result = tape.node("std", (self,), backward), tape.new(elements, dtype, "std")
        tape.save(node, self, result)
        return tape.output(node, result)

    def exp(self) -> Tensor:
        return self.cast_high().op("exp", "mul", keeps=True)

    def softplus(self) -> Tensor:
        return self.cast_high().from_input("softplus")

    def cumsum(self) -> Tensor:
        """`x.cumsum(dim)`; its gradient is flipped, summed and flipped back."""
        self = self.cast_high()
        return self.op("cumsum", "flip", own=True, steps=("flip", "cumsum"))

    def total(self, elements: int, label: Label | str = "sum") -> Tensor:
        """`x.sum(...)`, of `elements`. Its gradient is expanded, which is a view."""
        self = self.cast_high()
        full = self.elements
        node = self.tape.node("sum", (self,), lambda gradient: (gradient.alias(full),))
        return self.tape.output(node, self.tape.new(elements, self.dtype, label))

    def summed(self, elements: int, *, viewed: bool = False) -> Tensor:
        """`x.sum(dim)`, of `elements`, or `x.view(...).sum(dim)` if `viewed`; autocast makes the
        result float32. The gradient is expanded, which is a view, and copied for the cast back or
        for the view without the added dimension."""
        tape, full, given = self.tape, self.elements, self.dtype

        def backward(gradient: Tensor) -> Gradients:
            if gradient.dtype != given:
                return (tape.new(full, given, "_to_copy"),)
            return (tape.new(full, given, "clone") if viewed else gradient.alias(full),)

        node = tape.node("sum", (self,), backward)
        dtype = given if tape.autocast is None else "fp32"
        return tape.output(node, tape.new(elements, dtype, "sum"))

    def dropout(self, probability: float) -> Tensor:
        """`F.dropout` on CUDA: the fused kernel, which saves a mask of one byte per element."""
        if probability == 0.0 or not self.tape.training:
            return self
        tape, elements, dtype, name = self.tape, self.elements, self.dtype, "native_dropout"
        node = tape.node(name, (self,), lambda _: (tape.new(elements, dtype, f"{name}_backward"),))
        output = tape.new(elements, dtype, name)
        mask = tape.new(elements, "bool", "native_dropout mask")
        tape.save(node, mask)
        return tape.output(node, output)

    def top_k(self, elements: int, name: str = "topk") -> tuple[Tensor, Tensor]:
        """`torch.topk`, or `torch.max`: values, and their int64 indices, both of `elements`."""
        tape, full, dtype = self.tape, self.elements, self.dtype
        node = tape.node(name, (self,), lambda _: (tape.new(full, dtype, "new_zeros"),))
        values = tape.new(elements, dtype, name)
        indices = tape.new(elements, "int64", name)
        tape.save(node, indices)
        return tape.output(node, values), indices


def _pass(gradient: Tensor) -> Gradients:
    return (gradient,)


def _pass_to_both(gradient: Tensor) -> Gradients:
    return gradient, gradient


def wider(a: str, b: str) -> str:
    """The dtype to which two floating-point dtypes are promoted: float32 unless they are the
    same."""
    return a if a == b else "fp32"


class Node:
    """An operation that the backward pass will run.

    Attributes:
        sequence: order of creation; the backward pass runs the highest first.
        edges: where the gradients of its inputs go, None for inputs without one.
        backward: turns gradients of the outputs into gradients of the inputs.
        outputs: how many it has; with more than one, `backward` takes a list.
        layer, turn, module: where the operation is (tape.py).
        saved: buffers kept for `backward`; inside a checkpoint, their numbers in `region`.
    """

    def __init__(
        self,
        name: str,
        sequence: int,
        edges: list[Edge | None],
        backward: Callable[..., Gradients],
        outputs: int,
        layer: int,
        turn: tuple[int, int],
        module: str,
    ) -> None:
        # CPython lets go of attributes in this order: first what the operation holds, then others.
        self.backward = backward
        self.edges = edges
        self.name = name
        self.sequence = sequence
        self.outputs = outputs
        self.layer = layer
        self.turn = turn
        self.module = module
        self.saved: list[Buffer] | list[int] = []
        self.region: Region | None = None


@dataclass(eq=False)
class Region:
    """What one checkpoint covers (torch.utils.checkpoint, use_reentrant=False). See
    autograd.py.

    Attributes:
        function, inputs: to be run again; they live until the last node of the region that saved
            something has run.
        saved: how many tensors its nodes saved, and the `owners`, those nodes, of which some may be
            gone because nothing needs their results.
        recomputed: these tensors, once it has run again; each is released as its node takes it.
    """

    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    autocast: str | None
    layer: int
    saved: int = 0
    owners: list[ReferenceType[Node]] = field(default_factory=list)
    recomputed: list[Buffer | None] | None = None


class StopRecompute(Exception):
    """All that a region saved has been recomputed: the rest of its forward pass does not run."""
