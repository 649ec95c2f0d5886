"""Records every storage that operations allocate and free, while a real model runs, on real CPU
tensors or fake tensors of any device. A storage is recorded when an operation first returns it, and
freed when the last tensor that uses it is deleted. Tensors of other devices are not counted. Bytes
are those of the storage, before any rounding.

The module that an operation belongs to is the one whose forward pass ran it, or whose backward pass
did. Autograd numbers its nodes in the order in which they are created: the numbers at which modules
were entered and left tell in the backward pass which module a node comes from.

A trace knows the sizes of tensors but not where they come from. A dimension that is as large as a
letter's value is taken to be that letter; of several letters, the first in the list, which is the
most frequent one. So a formula of a trace always evaluates to the traced bytes, but it may name
another letter of the same value.
"""

from __future__ import annotations

import math
import sys
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Self
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qtui_core.dataclass import dataclass
from qtui_core.memory.formulas.size import letter, letters_of
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay import record
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
    rounded,
)
from qtui_core.training.model.stacks import Stack, place_in

#: (name in the model, tensor) of tensors that stay; the component of all of them, or by name.
NamedTensors = Iterable[tuple[str, torch.Tensor]]
ComponentOf = Component | Callable[[str], Component]

#: Letters, and products of two letters, that a dimension is compared with, in this order.
_FIRST = ("S", "h", "V", "I", "HD", "GD", "M", "H", "G", "D", "E", "r")
#: Smaller dimensions say nothing about where they come from.
_SHORTEST = 3


class Dimensions:
    """Letters by the size of the dimensions that they stand for."""

    def __init__(self, config: Mapping[str, Any], plan: RunPlan) -> None:
        known = letters_of(config.get("text_config") or config)
        known |= {"S": letter("S", plan.sequence), "r": letter("r", plan.lora_rank)}
        if "D" not in known and {"h", "H"} <= set(known):
            known["D"] = letter("D", known["h"] // known["H"])
        self._batch, self._sequence = letter("B", plan.batch), plan.sequence
        self._by_length: dict[int, int] = {}
        for name in (*_FIRST, *known):
            if all(part in known for part in name):
                size = math.prod((known[part] for part in name[1:]), start=known[name[0]])
                if size >= _SHORTEST:
                    self._by_length.setdefault(int(size), size)
        tokens = self._batch * known["S"]
        self._by_length.setdefault(int(tokens), tokens)

    def bytes_of(self, dimensions: Sequence[int], element: int) -> int:
        """The bytes of a tensor with these dimensions and so many bytes per element, as a product
        of letters."""
        size = element
        for place, side in enumerate(dimensions):
            batch = not place and side == self._batch and self._sequence in dimensions[1:]
            size = size * (self._batch if batch else self._by_length.get(side, side))
        return size


class Places:
    """The module that is at work. Its name is that in the model, or that within its layer if it is
    in one; "" outside of all modules."""

    def __init__(self) -> None:
        self.stacks: Sequence[Stack] = ()
        self._stack: list[str] = []
        self._numbers: list[int] = [0]
        self._names: list[str] = [""]

    def current(self) -> str:
        """The module that the operation being dispatched belongs to."""
        if self._stack:
            return self._stack[-1]
        node = torch._C._current_autograd_node()
        if node is None:
            return ""
        return self._names[bisect_right(self._numbers, node._sequence_nr()) - 1]

    def watch(self, model: nn.Module) -> None:
        """Starts to follow the modules of a model."""
        for full, module in model.named_modules():
            name = place_in(self.stacks, full)[1]
            module.register_forward_pre_hook(lambda _module, _args, name=name: self._enter(name))
            module.register_forward_hook(lambda *_: self._leave(), always_call=True)

    def _enter(self, name: str) -> None:
        self._stack.append(name)
        self._note()

    def _leave(self) -> None:
        self._stack.pop()
        self._note()

    def _note(self) -> None:
        self._numbers.append(torch.autograd._get_sequence_nr())
        self._names.append(self._stack[-1] if self._stack else "")


def watch_layers(stack: Stack, announce: Callable[[int, str], None]) -> None:
    """Calls `announce(index, direction)` when the forward pass of a layer begins and when its
    backward pass begins; and with OUTSIDE as index after the forward pass of the last layer and
    after the backward pass of the first layer.

    If checkpointing runs a forward pass again, that pass belongs to the backward pass of its layer
    and is not announced.
    """

    def at_backward(tensor: Any, index: int) -> None:
        """Announces `index` when the node that created a tensor runs in the backward pass."""
        if (node := getattr(tensor, "grad_fn", None)) is not None:
            node.register_prehook(lambda _gradients: announce(index, BACKWARD))

    def begins(index: int, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch._C._current_autograd_node() is None:
            if index == stack.start:
                at_backward(args[0] if args else next(iter(kwargs.values())), OUTSIDE)
            announce(index, FORWARD)

    def ends(index: int, module: nn.Module, args: Any, output: Any) -> None:
        if torch._C._current_autograd_node() is None:
            at_backward(output[0] if isinstance(output, tuple) else output, index)
            if index == stack.start + len(stack.layers) - 1:
                announce(OUTSIDE, FORWARD)

    for index, layer in enumerate(stack.layers, stack.start):
        layer.register_forward_pre_hook(partial(begins, index), with_kwargs=True)
        layer.register_forward_hook(partial(ends, index), always_call=True)


#: Phases in which no module is at work.
STILL = (Phase.LOAD, Phase.PREPARE, Phase.OPTIMIZER)


def mark_owners(
    events: Sequence[Event], known: Mapping[int, int], sources: Mapping[int, int]
) -> tuple[Event, ...]:
    """The events, with marks added in phases where no module is at work: there is a mark wherever
    the next event belongs to another layer.

    Args:
        events: with the marks of the layers' own work.
        known: the layer of each storage that has a name in the model; OUTSIDE if it is in no layer.
        sources: storage -> the storage that it was made from, for example by a cast, or as the
            optimizer state of a weight. If the layer of one of both is known, the other has the
            same.
    """
    owners = dict(known)
    for made, source in sources.items():
        if made not in owners and source in owners:
            owners[made] = owners[source]
    for made, source in reversed(list(sources.items())):
        if source not in owners and made in owners:
            owners[source] = owners[made]
    marked: list[Event] = []
    working = OUTSIDE  # the layer that the model announced
    marking = OUTSIDE  # the layer that was marked last
    still = False
    for event in events:
        kind = event[0]
        if kind == PHASE:
            if marking != OUTSIDE:
                marked.append((LAYER, OUTSIDE, FORWARD))
            working = marking = OUTSIDE
            still = event[1] in STILL
        elif kind == LAYER:
            working = event[1]
        elif kind in (ALLOCATE, FREE):
            owner = owners.setdefault(event[1], marking if still else working)
            if still and owner != marking:
                marked.append((LAYER, owner, FORWARD))
                marking = owner
        marked.append(event)
    return tuple(marked)


_aten = torch.ops.aten
_ADD, _ADD_IN_PLACE = _aten.add.Tensor, _aten.add_.Tensor
#: Operations that sum into the zeros that the backward formula of a lookup has just created -> the
#: same operation in place. Under a dispatch mode and for tensor subclasses, the formulas use the
#: first form, otherwise the second (index_backward, gather_backward and
#: value_selecting_reduction_backward in torch/csrc/autograd/FunctionsManual.cpp).
IN_PLACE: Final[dict[Any, Any]] = {
    _aten.index_put.default: _aten.index_put_.default,
    _aten.scatter_add.default: _aten.scatter_add_.default,
    _aten.scatter.src: _aten.scatter_.src,
}
#: Operations whose results belong to the loss, whenever they run, as in an estimate
#: (qtui_core.memory.tape.operations).
_OF_LOSS = frozenset(
    ("_log_softmax", "_log_softmax_backward_data", "nll_loss_forward", "nll_loss_backward")
)
_UNKNOWN = -1
_ASKING = -2


class Tracker(TorchDispatchMode):
    """Records events while it is entered; `track` records storages that exist already. With
    `dimensions` the sizes are products of letters, otherwise plain numbers.

    Attributes:
        places: finds the module that an operation belongs to.
        live: bytes alive now, each storage rounded up to a multiple of 512 as by CUDA's allocator.
        at: the phase that began last.
    """

    def __init__(self, device_type: str, dimensions: Dimensions | None = None) -> None:
        super().__init__()
        self._sides = dimensions
        self.places = Places()
        self.live = 0
        self.at: Phase | None = None
        self._device = device_type
        self._events: list[Event] = []
        self._labels: dict[int, Label] = {}
        self._layers: dict[int, int] = {}
        self._sources: dict[int, int] = {}
        self._alive: dict[int, _Storage] = {}
        self._left: dict[int, Any] = {}
        self._count = 0
        self._operation: tuple[str, str] | None = None
        self._leaving: Event | None = None
        self._own_references = _UNKNOWN

    def calibrate(self) -> None:
        """Finds out how many references the autograd engine itself holds to a gradient that nothing
        else refers to, when it adds another one to it, under the modes that are entered now.
        Nothing of this is recorded. Call it after all modes have been entered."""
        device, events = self._device, self._events
        self._device, self._events, self._own_references = "none", [], _ASKING
        with torch.enable_grad():
            twice = torch.ones(1, device=device, requires_grad=True).sin()
            (twice.cos() * twice.exp()).backward()
        self._device, self._events = device, events

    def events(self) -> tuple[Event, ...]:
        """All recorded events."""
        return mark_owners(self._labelled(), self._layers, self._sources)

    def take(self) -> tuple[Event, ...]:
        """Returns the events since the last call, without marks of owners, and forgets them; this
        serves runs without an end. A buffer's label is part of its allocation event, so it must be
        known when that event is taken."""
        taken = self._labelled()
        for event in taken:
            if event[0] == FREE:
                self._labels.pop(event[1], None)
                self._layers.pop(event[1], None)
        self._events = []
        self._sources.clear()
        return taken

    def _labelled(self) -> tuple[Event, ...]:
        return tuple(
            (*event[:3], self._labels.get(event[1], event[3])) if event[0] == ALLOCATE else event
            for event in self._events
        )

    def phase(self, phase: Phase) -> None:
        """A phase begins."""
        self._leave()
        self.at = phase
        self._events.append((PHASE, phase))
        self._operation = None

    def layer(self, index: int, direction: str) -> None:
        """Work on a layer begins; the index is as in a recording. What is freed before the next
        operation still belongs to the previous layer."""
        self._leaving = None
        if index == OUTSIDE:
            self._leaving = (LAYER, index, direction)
        else:
            self._events.append((LAYER, index, direction))
            self._operation = None

    def _leave(self) -> None:
        if self._leaving is not None:
            self._events.append(self._leaving)
            self._leaving = self._operation = None

    def track(self, tensors: NamedTensors, component: ComponentOf) -> None:
        """Names existing tensors, and records those that no operation created under this mode.
        Names are those in the model; they determine the layer."""
        for full, tensor in tensors:
            entry = self._record(tensor, None)
            if entry is None or entry.id in self._labels:
                continue
            layer, name = place_in(self.places.stacks, full)
            self._layers[entry.id] = layer
            self._labels[entry.id] = Label(
                name, component(full) if callable(component) else component
            )

    def leave_out(self, tensors: Iterable[torch.Tensor]) -> None:
        """Never counts the storages of these tensors. Events that were recorded for them and not
        taken yet are deleted; if they were taken, the storages count as freed now."""
        left = set()
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = storage._cdata
            if tensor.device.type == self._device and key not in self._left:
                self._left[key] = weakref.ref(storage, partial(self._forget, key))
                if (entry := self._alive.pop(key, None)) is not None:
                    left.add(entry.id)
                    self.live -= rounded(entry.nbytes)
        made = {event[1] for event in self._events if event[0] == ALLOCATE} & left
        self._events = [e for e in self._events if not (e[0] == ALLOCATE and e[1] in made)]
        self._events += [(FREE, number) for number in left - made]

    def _forget(self, key: int, _: object) -> None:
        """A storage that was left out is deleted, so its address may be reused by another one."""
        self._left.pop(key, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._leave()
        kwargs = kwargs or {}
        if not torch.is_grad_enabled() and torch._C._current_autograd_node() is not None:
            if (in_place := IN_PLACE.get(func)) is not None:
                in_place(*args, **kwargs)
                return args[0]
            if func is _ADD and self._adds_in_place(*args, **kwargs):
                _ADD_IN_PLACE(*args)
                return args[0]
        result = func(*args, **kwargs)
        # Most operations return one tensor; searching a tree of results would take as long as a
        # small product.
        leaves = (result,) if isinstance(result, torch.Tensor) else tree_leaves(result)
        for place, leaf in enumerate(leaves):
            entry = self._record(leaf, func) if isinstance(leaf, torch.Tensor) else None
            if entry is not None and self.at in STILL:
                self._remember_source(entry, args, place)
        return result

    def _adds_in_place(self, first: Any, second: Any, **kwargs: Any) -> bool:
        """Whether an addition in a backward pass is that of the autograd engine, which adds a
        second gradient to a first.

        The engine adds in place if it holds the last reference to a dense gradient whose storage no
        other tensor shares, but never under a dispatch mode or with tensor subclasses
        (can_accumulate_inplace in torch/csrc/autograd/input_buffer.cpp). The tracker would then see
        memory that a real step does not allocate, so it adds in place as the engine would.
        """
        if kwargs or not isinstance(second, torch.Tensor):
            return False
        if first.shape != second.shape or first.dtype != second.dtype:
            return False
        references = first._use_count()
        if self._own_references == _ASKING:
            self._own_references = references
        # A gradient that is a view shares its storage with its base.
        alone = references == self._own_references and not first._is_view()
        return alone and bool(_aten.is_non_overlapping_and_dense(first))

    def _record(self, tensor: torch.Tensor, func: Any) -> _Storage | None:
        """The entry of a tensor's storage, which is recorded if it is new."""
        if tensor.device.type != self._device:
            return None
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:  # tensors of other layouts have none
            return None
        key, nbytes = storage._cdata, storage.nbytes()
        known = self._alive.get(key)
        if known is not None or nbytes == 0 or key in self._left:
            return known
        name = ""
        if func is not None:
            name = func.overloadpacket.__name__
            operation = name, self.places.current()
            if operation != self._operation:
                self._operation = operation
                self._events.append((OPERATION, *operation))
        size = nbytes
        if self._sides is not None and nbytes == tensor.numel() * tensor.element_size():
            size = self._sides.bytes_of(tensor.shape, tensor.element_size())
        self._count += 1
        entry = self._alive[key] = _Storage(self._count, nbytes)
        label = Label(name, Component.LOSS if name in _OF_LOSS else None)
        self._events.append((ALLOCATE, entry.id, size, label))
        self.live += rounded(nbytes)
        entry.reference = weakref.ref(storage, lambda _: self._free(key, entry))
        return entry

    def _remember_source(self, entry: _Storage, args: Any, place: int) -> None:
        """Remembers the storage that another one was made from: that of the first argument, or, if
        this is a list, that of its tensor at the same place."""
        first = args[0] if args else None
        if isinstance(first, list | tuple) and place < len(first):
            first = first[place]
        if isinstance(first, torch.Tensor) and first.device.type == self._device:
            known = self._alive.get(first.untyped_storage()._cdata)
            if known is not None and known is not entry:
                self._sources.setdefault(entry.id, known.id)

    def _free(self, key: int, entry: _Storage) -> None:
        if self._alive.get(key) is entry:
            del self._alive[key]
            self.live -= rounded(entry.nbytes)
            self._events.append((FREE, entry.id))


@dataclass(eq=False)
class _Storage:
    """A live storage: its id and bytes, and the object that signals its deletion."""

    id: int
    nbytes: int
    reference: Any = None


class CpuTracker(Tracker):
    """A Tracker of CPU tensors. It corrects a difference to a CPU run without a tracker: a dispatch
    mode sees a product with 4-bit weights as one operation. On a CPU bitsandbytes composes it of
    several (backends/default/ops.py); they are run one by one, so that their tensors are
    recorded."""

    _product: Any = None
    _composed: Any = None

    def __init__(self) -> None:
        super().__init__("cpu")

    def __enter__(self) -> Self:
        if self._product is None and "bitsandbytes" in sys.modules:
            from bitsandbytes.backends.default import ops

            self._product = torch.ops.bitsandbytes.gemm_4bit.default
            self._composed = ops._gemm_4bit_default_impl
        super().__enter__()
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is self._product:
            with self:
                return self._composed(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """A context in which libraries behave as on a GPU, where a CPU run differs for reasons other
    than its kernels:

    - Whether autocast is on is answered for the CPU if no device is named. torch would answer for
      CUDA. peft's adapters over quantized layers ask this way (lora/bnb.py), and under autocast
      they would convert what they leave as it is on a GPU.
    - Dropout is one operation that keeps a mask of one byte per element. On a CPU torch composes it
      of several (Dropout.cpp), which keep noise in the dtype of the input.
    """
    enabled: Any = torch.is_autocast_enabled
    dropout = functional.dropout

    def drop(
        input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        if inplace or not training or not 0.0 < p < 1.0:
            return dropout(input, p, training, inplace)
        return torch.native_dropout(input, p, True)[0]

    with (
        patch.object(torch, "is_autocast_enabled", lambda *device: enabled(*device or ("cpu",))),
        patch.object(functional, "dropout", drop),
    ):
        yield


@dataclass(frozen=True)
class Closed:
    """A phase that has ended, in bytes: `peak`, the most that was alive in it; `end`, what is alive
    at its end; and both by component."""

    peak: int
    end: int
    held: dict[Component, int]
    peak_held: dict[Component, int]


#: (bytes as CUDA's allocator rounds them, phase in which the buffer was made, label).
_Entry = tuple[int, str, Label]


class Ledger:
    """The buffers that are alive, by their ids. A buffer whose label names no component gets its
    component from its lifetime, as in an estimate; a buffer that is still alive is treated as if it
    stayed alive."""

    def __init__(self) -> None:
        #: (bytes as CUDA's allocator rounds them, phase in which the buffer was made, label).
        self._alive: dict[int, tuple[int, str, Label]] = {}
        self._phase = ""

    def close(self, events: Sequence[Event]) -> Closed:
        """Enters all events since the last call. They belong to one phase, which the first event
        begins, or to the rest of a phase."""
        known = dict(self._alive)
        made, freed = dict.fromkeys(known, 0), dict.fromkeys(known, len(events) + 1)
        live = peak = sum(size for size, _, _ in known.values())
        place = 0
        for number, event in enumerate(events, 1):
            if event[0] == ALLOCATE:
                known[event[1]] = (rounded(event[2]), self._phase, event[3])
                made[event[1]], freed[event[1]] = number, len(events) + 1
                live += known[event[1]][0]
            elif event[0] == FREE:
                live -= known[event[1]][0]
                freed[event[1]] = number
            elif event[0] == PHASE:
                self._phase = str(event[1])
            if live > peak:
                peak, place = live, number

        def held(moment: int, phase: str) -> dict[Component, int]:
            """The bytes that are alive after an event; what dies later dies in `phase`."""
            sums: dict[Component, int] = {}
            for key, (size, born, label) in known.items():
                if made[key] <= moment < freed[key]:
                    died = phase if freed[key] <= len(events) else ""
                    component = label.component or record.by_lifetime(born, died)
                    sums[component] = sums.get(component, 0) + size
            return sums

        closed = Closed(peak, live, held(len(events), ""), held(place, self._phase))
        self._alive = {key: one for key, one in known.items() if freed[key] > len(events)}
        return closed
