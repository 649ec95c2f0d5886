"""Records every storage that operations allocate and free, while a real model runs.

It works on real CPU tensors and on fake tensors of any device. A storage is recorded when an
operation first returns it, and freed when the last tensor that uses it is deleted. Tensors of other
devices are not counted. Bytes are those of the storage, before any rounding.

The module that an operation belongs to is the one whose forward pass ran it, or whose backward pass
did. In the forward pass, hooks on modules keep a stack. Autograd numbers its nodes in the order in
which they are created: the numbers at which modules were entered and left tell in the backward pass
which module a node comes from. A layer is announced when its forward pass begins, and again when
the first node of its backward pass runs.

A trace knows the sizes of tensors but not where they come from. A dimension that is as large as a
letter's value is taken to be that letter; if several letters have the value, the first in the list,
which is the most frequent one, is taken. So a formula of a trace always evaluates to the traced
bytes, but it may name another letter of the same value.
"""

from __future__ import annotations

import sys
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

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
from qtui_core.training.tracing.fake_kernels import IN_PLACE

#: Letters, and products of two letters, that a dimension is compared with, in this order.
_FIRST = ("S", "h", "V", "I", "HD", "GD", "M", "H", "G", "D", "E", "r")
#: Smaller dimensions say nothing about where they come from.
_SHORTEST = 3


class Dimensions:
    """Letters by the size of the dimensions that they stand for."""

    def __init__(self, config: Mapping[str, Any], plan: RunPlan) -> None:
        known = letters_of(config.get("text_config") or config)
        self._batch = letter("B", plan.batch)
        known |= {"S": letter("S", plan.sequence), "r": letter("r", plan.lora_rank)}
        if "D" not in known and {"h", "H"} <= set(known):
            known["D"] = letter("D", known["h"] // known["H"])
        tokens = self._batch * known["S"]
        self._by_length: dict[int, int] = {}
        for name in (*_FIRST, *known):
            if all(part in known for part in name):
                size = known[name[0]] if len(name) == 1 else known[name[0]] * known[name[1]]
                if size >= _SHORTEST:
                    self._by_length.setdefault(int(size), size)
        self._by_length.setdefault(int(tokens), tokens)
        self._sequence = plan.sequence

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

    def of(self, name: str) -> tuple[int, str]:
        """(layer, name within the layer) for a tensor's name in the model."""
        return place_in(self.stacks, name)

    def watch(self, model: nn.Module) -> None:
        """Starts to follow the modules of a model."""
        for full, module in model.named_modules():
            name = self.of(full)[1]
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
    for place, layer in enumerate(stack.layers):
        index = stack.start + place
        begins = _begins(index, announce, first=place == 0)
        ends = _ends(index, announce, last=place == len(stack.layers) - 1)
        layer.register_forward_pre_hook(begins, with_kwargs=True)
        layer.register_forward_hook(ends, always_call=True)


def _begins(
    index: int, announce: Callable[[int, str], None], *, first: bool
) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch._C._current_autograd_node() is not None:
            return
        if first:
            hidden = args[0] if args else next(iter(kwargs.values()))
            _at_backward(hidden, OUTSIDE, announce)
        announce(index, FORWARD)

    return hook


def _ends(index: int, announce: Callable[[int, str], None], *, last: bool) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        if torch._C._current_autograd_node() is not None:
            return
        _at_backward(output[0] if isinstance(output, tuple) else output, index, announce)
        if last:
            announce(OUTSIDE, FORWARD)

    return hook


def _at_backward(tensor: Any, index: int, announce: Callable[[int, str], None]) -> None:
    """Announces `index` when the node that created a tensor runs in the backward pass."""
    node = getattr(tensor, "grad_fn", None)
    if node is not None:
        node.register_prehook(lambda _gradients: announce(index, BACKWARD))


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
    owners = _spread(known, sources)
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
        elif kind == ALLOCATE:
            owner = owners.setdefault(event[1], marking if still else working)
        elif kind == FREE:
            owner = owners[event[1]]
        if still and kind in (ALLOCATE, FREE) and owner != marking:
            marked.append((LAYER, owner, FORWARD))
            marking = owner
        marked.append(event)
    return tuple(marked)


def _spread(known: Mapping[int, int], sources: Mapping[int, int]) -> dict[int, int]:
    owners = dict(known)
    for made, source in sources.items():
        if made not in owners and source in owners:
            owners[made] = owners[source]
    for made, source in reversed(list(sources.items())):
        if source not in owners and made in owners:
            owners[source] = owners[made]
    return owners


_ADD = torch.ops.aten.add.Tensor
_ADD_IN_PLACE = torch.ops.aten.add_.Tensor
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

    def __init__(
        self, device_type: str, places: Places | None = None, dimensions: Dimensions | None = None
    ) -> None:
        super().__init__()
        self._sides = dimensions
        self.places = places or Places()
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
        kept = self._device, self._events
        self._device, self._events, self._own_references = "none", [], _ASKING
        with torch.enable_grad():
            x = torch.ones(1, device=kept[0], requires_grad=True)
            twice = x.sin()
            (twice.cos() * twice.exp()).backward()
        self._device, self._events = kept

    def events(self) -> tuple[Event, ...]:
        """All recorded events."""
        labelled = [
            (*event[:3], self._labels.get(event[1], event[3])) if event[0] == ALLOCATE else event
            for event in self._events
        ]
        return mark_owners(labelled, self._layers, self._sources)

    def take(self) -> tuple[Event, ...]:
        """Returns the events since the last call, without marks of owners, and forgets them; this
        serves runs without an end. A buffer's label is part of its allocation event, so it must be
        known when that event is taken."""
        events, self._events = self._events, []
        labels = self._labels
        taken = tuple(
            (*event[:3], labels.get(event[1], event[3])) if event[0] == ALLOCATE else event
            for event in events
        )
        for event in events:
            if event[0] == FREE:
                labels.pop(event[1], None)
                self._layers.pop(event[1], None)
        self._sources.clear()
        return taken

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

    def track(
        self,
        tensors: Iterable[tuple[str, torch.Tensor]],
        component: Component | Callable[[str], Component],
    ) -> None:
        """Names existing tensors, and records those that no operation created under this mode.
        Names are those in the model; they determine the layer."""
        for full, tensor in tensors:
            entry = self._record(tensor, None)
            if entry is None or entry.id in self._labels:
                continue
            layer, name = self.places.of(full)
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
            if tensor.device.type != self._device or storage._cdata in self._left:
                continue
            key = storage._cdata
            self._left[key] = weakref.ref(storage, partial(self._forget, key))
            entry = self._alive.pop(key, None)
            if entry is not None:
                left.add(entry.id)
                self.live -= rounded(entry.nbytes)
        if not left:
            return
        made = {event[1] for event in self._events if event[0] == ALLOCATE} & left
        self._events = [e for e in self._events if not (e[0] == ALLOCATE and e[1] in made)]
        self._events += [(FREE, number) for number in left - made]

    def _forget(self, key: int, _: object) -> None:
        """A storage that was left out is deleted, so its address may be reused by another one."""
        self._left.pop(key, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._leave()
        if func is _ADD and _by_engine(args, kwargs):
            first = args[0]
            references = first._use_count()
            if self._own_references == _ASKING:
                self._own_references = references
            # A gradient that is a view shares its storage with its base.
            if references == self._own_references and not first._is_view() and _is_dense(first):
                _ADD_IN_PLACE(*args)
                return first
        result = func(*args, **(kwargs or {}))
        # Most operations return one tensor; searching a tree of results would take as long as a
        # small product.
        leaves = (result,) if isinstance(result, torch.Tensor) else tree_leaves(result)
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                entry = self._record(leaf, func)
                if entry is not None and self.at in STILL:
                    self._remember_source(entry, args, place)
        return result

    def _record(self, tensor: torch.Tensor, func: Any) -> _Storage | None:
        """The entry of a tensor's storage, which is recorded if it is new."""
        if tensor.device.type != self._device:
            return None
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:  # tensors of other layouts have none
            return None
        key = storage._cdata
        known = self._alive.get(key)
        nbytes = storage.nbytes()
        if known is not None or nbytes == 0 or key in self._left:
            return known
        name = ""
        if func is not None:
            name = func.overloadpacket.__name__
            operation = name, self.places.current()
            if operation != self._operation:
                self._operation = operation
                self._events.append((OPERATION, *operation))
        self._count += 1
        entry = _Storage(self._count, nbytes)
        component = Component.LOSS if name in _OF_LOSS else None
        size = nbytes
        if self._sides is not None and nbytes == tensor.numel() * tensor.element_size():
            size = self._sides.bytes_of(tensor.shape, tensor.element_size())
        self._events.append((ALLOCATE, entry.id, size, Label(name, component)))
        self.live += rounded(nbytes)
        self._alive[key] = entry
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


class _Storage:
    """A live storage: its id and bytes, and the object that signals its deletion."""

    __slots__ = ("id", "nbytes", "reference")

    def __init__(self, number: int, nbytes: int) -> None:
        self.id = number
        self.nbytes = nbytes
        self.reference: Any = None


def _by_engine(args: Any, kwargs: Any) -> bool:
    """Whether an addition may be that of the autograd engine, which adds a second gradient to a
    first.

    The engine adds in place if it holds the last reference to a dense gradient whose storage no
    other tensor shares, but never under a dispatch mode or with tensor subclasses
    (can_accumulate_inplace in torch/csrc/autograd/input_buffer.cpp). The tracker would then see
    memory that a real step does not allocate, so it adds in place as the engine would.
    """
    if kwargs or torch.is_grad_enabled() or torch._C._current_autograd_node() is None:
        return False
    first, second = args
    return (
        isinstance(second, torch.Tensor)
        and first.shape == second.shape
        and first.dtype == second.dtype
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements fill its memory without gaps, in any order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


class CpuTracker(Tracker):
    """A Tracker of CPU tensors. It corrects two differences to a CPU run without a tracker:

    - A dispatch mode sees a product with 4-bit weights as one operation. On a CPU bitsandbytes
      composes it of several (backends/default/ops.py); they are run one by one, so that their
      tensors are recorded.
    - Without a dispatch mode, the backward pass of a lookup writes into the zeros that it has just
      created. Under a mode it would create another tensor, so it is made to write in place.
    """

    def __init__(self) -> None:
        super().__init__("cpu")
        self._product: Any = None
        self._composed: Callable[..., Any] | None = None

    def __enter__(self) -> Self:
        if self._product is None:
            self._product, self._composed = _product_of_4_bits()
        super().__enter__()
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is self._product and self._composed is not None:
            with self:
                return self._composed(*args, **(kwargs or {}))
        in_place = IN_PLACE.get(func)
        if (
            in_place is not None
            and not torch.is_grad_enabled()
            and torch._C._current_autograd_node() is not None
        ):
            in_place(*args, **(kwargs or {}))
            return args[0]
        return super().__torch_dispatch__(func, types, args, kwargs)


def _product_of_4_bits() -> tuple[Any, Callable[..., Any] | None]:
    """The 4-bit product of bitsandbytes, and the function that composes it on a CPU. (None, None)
    if the library is not imported or its version does not have them."""
    if "bitsandbytes" not in sys.modules:
        return None, None
    from bitsandbytes.backends.default import ops

    packet = getattr(torch.ops.bitsandbytes, "gemm_4bit", None)
    return getattr(packet, "default", None), getattr(ops, "_gemm_4bit_default_impl", None)


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
    module: Any = torch
    enabled, dropout = module.is_autocast_enabled, functional.dropout

    def answer(*device: str) -> bool:
        return bool(enabled(*device or ("cpu",)))

    def drop(
        input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        if inplace or not training or not 0.0 < p < 1.0:
            return dropout(input, p, training, inplace)
        return torch.native_dropout(input, p, True)[0]

    module.is_autocast_enabled, functional.dropout = answer, drop
    try:
        yield
    finally:
        module.is_autocast_enabled, functional.dropout = enabled, dropout


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
        self._alive: dict[int, _Entry] = {}
        self._live = 0
        self._phase = ""

    def close(self, events: Sequence[Event]) -> Closed:
        """Enters all events since the last call. They belong to one phase, which the first event
        begins, or to the rest of a phase."""
        before = dict(self._alive)
        made: dict[int, _Entry] = {}
        died: dict[int, str] = {}
        live = peak = self._live
        place = 0
        for number, event in enumerate(events, 1):
            kind = event[0]
            if kind == ALLOCATE:
                size = rounded(event[2])
                self._alive[event[1]] = made[event[1]] = (size, self._phase, event[3])
                live += size
                if live > peak:
                    peak, place = live, number
            elif kind == FREE:
                live -= self._alive.pop(event[1])[0]
                died[event[1]] = self._phase
            elif kind == PHASE:
                self._phase = str(event[1])
        self._live = live
        for event in events[:place]:
            if event[0] == ALLOCATE:
                before[event[1]] = made[event[1]]
            elif event[0] == FREE:
                del before[event[1]]
        return Closed(peak, live, _sums(self._alive.items(), {}), _sums(before.items(), died))


def _sums(entries: Iterable[tuple[int, _Entry]], died: dict[int, str]) -> dict[Component, int]:
    sums: dict[Component, int] = {}
    for number, (size, born, label) in entries:
        component = label.component or record.by_lifetime(born, died.get(number, ""))
        sums[component] = sums.get(component, 0) + size
    return sums
