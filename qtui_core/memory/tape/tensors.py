"""Tensors without values, the buffers of their bytes, and the operations that made them."""

from __future__ import annotations

from collections.abc import Callable

from qtui_core.memory.replay.record import ALLOCATE, FREE, Event, Label


class Buffer:
    """Bytes that are allocated as long as anything refers to this object. Its id is the number of
    the event that allocates it."""

    __slots__ = ("events", "id", "nbytes")

    def __init__(self, events: list[Event], nbytes: int, label: Label) -> None:
        self.events = events
        self.nbytes = nbytes
        self.id = len(events)
        events.append((ALLOCATE, self.id, nbytes, label))

    def __del__(self) -> None:
        self.events.append((FREE, self.id))


class Tensor:
    """A tensor without values.

    Attributes:
        elements: how many.
        dtype: its short name (dtypes.SIZES).
        buffer: holds its bytes; views share it.
        requires_grad: as in torch.
        node: the operation that made it, None for a leaf; `index`: which of its outputs this is.
        view: for a gradient, whether another tensor also holds its bytes (the base of a view), so
            that nothing may be added to it in place.
        grad: for a leaf, its accumulated gradient.
        flat: whether it is a matrix `[tokens, elements]`, not `[sequences, tokens, elements]`: the
            gradient that a product gives for it is then no view.
    """

    __slots__ = (
        "buffer",
        "dtype",
        "elements",
        "flat",
        "grad",
        "index",
        "node",
        "requires_grad",
        "view",
    )

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
        self.requires_grad = requires_grad
        self.view = view
        self.node: Node | None = None
        self.index = 0
        self.grad: Tensor | None = None
        self.flat = False


#: The result of a backward function: a gradient, or None, for each input.
Gradients = tuple[Tensor | None, ...]

#: Where a gradient goes: (node or leaf, which of its outputs, the elements and dtype it must have).
Edge = tuple["Node | Tensor", int, int, str]


class Node:
    """An operation that the backward pass will run.

    Attributes:
        sequence: order of creation; the backward pass runs the highest first.
        edges: where the gradients of its inputs go, None for inputs without one.
        backward: turns gradients of the outputs into gradients of the inputs.
        outputs: how many it has; with more than one, `backward` takes a list.
        saved: buffers kept for `backward`; inside a checkpoint, their numbers in `region`.
        layer, module: where the operation is.
    """

    __slots__ = (
        "backward",
        "edges",
        "layer",
        "module",
        "name",
        "outputs",
        "region",
        "saved",
        "sequence",
    )

    def __init__(
        self,
        name: str,
        sequence: int,
        edges: list[Edge | None],
        backward: Callable[..., Gradients],
        outputs: int,
        layer: int,
        module: str,
    ) -> None:
        self.name = name
        self.sequence = sequence
        self.edges = edges
        self.backward = backward
        self.outputs = outputs
        self.layer = layer
        self.module = module
        self.saved: list[Buffer] | list[int] = []
        self.region: Region | None = None


class Region:
    """What one checkpoint covers (torch.utils.checkpoint, use_reentrant=False). See
    step/checkpointing.py.

    Attributes:
        function, inputs: to be run again; they live until the last node of the region that saved
            something has run.
        saved: how many tensors its nodes saved.
        recomputed: these tensors, once it has run again; each is released as its node takes it.
    """

    __slots__ = ("autocast", "function", "inputs", "layer", "recomputed", "saved")

    def __init__(
        self,
        function: Callable[..., Tensor],
        inputs: tuple[Tensor, ...],
        autocast: str | None,
        layer: int,
    ) -> None:
        self.function = function
        self.inputs = inputs
        self.autocast = autocast
        self.layer = layer
        self.saved = 0
        self.recomputed: list[Buffer | None] | None = None


class StopRecompute(Exception):
    """All that a region saved has been recomputed: the rest of its forward pass does not run."""
