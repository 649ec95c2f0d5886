"""A recorder of every storage that operations allocate and free, while a real model runs.

Works on real CPU tensors and on fake tensors of any device. A storage is recorded when an
operation first returns it and freed when the last tensor over it dies; tensors of other devices
are not counted. Bytes are those of the storage, before any rounding.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qtui_core.memory.record import ALLOCATE, FREE, LAYER, OPERATION, PHASE, Event, Label, Phase
from qtui_core.training.places import Places

_ADD = torch.ops.aten.add.Tensor
_ADD_IN_PLACE = torch.ops.aten.add_.Tensor
_UNKNOWN = -1
_ASKING = -2


class Tracker(TorchDispatchMode):
    """Records events while it is entered; `track` records storages that exist already.

    Attributes:
        events: of the recording so far, as qtui_core.memory.record has them.
        places: where in the model an operation belongs.
        live: bytes alive now.
        at: the phase that has begun last.
    """

    def __init__(self, device_type: str, places: Places | None = None) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.places = places or Places()
        self.live = 0
        self.at: Phase | None = None
        self._device = device_type
        self._alive: dict[int, _Storage] = {}
        self._count = 0
        self._operation: tuple[str, str] | None = None
        self._own_references = _UNKNOWN

    def calibrate(self) -> None:
        """Finds out how many references the engine's own addition itself holds to a gradient that
        nothing else refers to, with the modes that are entered now. Nothing of it is recorded.
        Call it once all modes are entered."""
        kept = self._device, self.events
        self._device, self.events, self._own_references = "none", [], _ASKING
        with torch.enable_grad():
            x = torch.ones(1, device=kept[0], requires_grad=True)
            twice = x.sin()
            (twice.cos() * twice.exp()).backward()
        self._device, self.events = kept

    def phase(self, phase: Phase) -> None:
        """A phase begins."""
        self.at = phase
        self.events.append((PHASE, phase))
        self._operation = None

    def layer(self, index: int, direction: str) -> None:
        """Work on a layer begins; an index as in the record."""
        event = (LAYER, index, direction)
        if next((e for e in reversed(self.events) if e[0] in (LAYER, PHASE)), None) != event:
            self.events.append(event)
            self._operation = None

    def track(self, tensors: Iterable[tuple[str, torch.Tensor]], label: Label) -> None:
        """Records storages that no operation made while this mode was entered, each labelled
        with `label` and the name beside it. Those already recorded are relabelled."""
        for name, tensor in tensors:
            named = label._replace(what=name)
            known = self._alive.get(tensor.untyped_storage()._cdata)
            if known is None:
                self._record(tensor, named)
            else:
                self.events[known.event] = (ALLOCATE, known.id, known.nbytes, named)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._record(leaf, None, func)
        return result

    def _record(self, tensor: torch.Tensor, label: Label | None, func: Any = None) -> None:
        if tensor.device.type != self._device:
            return
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:  # a tensor of another layout has none
            return
        key = storage._cdata
        nbytes = storage.nbytes()
        if key in self._alive or nbytes == 0:
            return
        if label is None:
            name = func.overloadpacket.__name__
            self._announce((name, self.places.current()))
            label = Label(name)
        self._count += 1
        entry = _Storage(self._count, nbytes, len(self.events))
        self.events.append((ALLOCATE, entry.id, nbytes, label))
        self.live += nbytes
        self._alive[key] = entry
        entry.reference = weakref.ref(storage, lambda _: self._free(key, entry))

    def _announce(self, operation: tuple[str, str]) -> None:
        if operation != self._operation:
            self._operation = operation
            self.events.append((OPERATION, *operation))

    def _free(self, key: int, entry: _Storage) -> None:
        if self._alive.get(key) is entry:
            del self._alive[key]
            self.live -= entry.nbytes
            self.events.append((FREE, entry.id))


class _Storage:
    """One that is alive: its id and bytes, and where in the events it was recorded."""

    __slots__ = ("event", "id", "nbytes", "reference")

    def __init__(self, number: int, nbytes: int, event: int) -> None:
        self.id = number
        self.nbytes = nbytes
        self.event = event
        self.reference: Any = None


def _by_engine(args: Any, kwargs: Any) -> bool:
    """Whether an addition may be the engine's own, of a second gradient to a first.

    The engine adds in place where it holds the last reference to a dense gradient that shares its
    storage with no other tensor, but never under a dispatch mode or with tensor subclasses
    (can_accumulate_inplace in torch/csrc/autograd/input_buffer.cpp): the tracker would see memory
    that a real step does not take, so it does what the engine would have done.
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
    """Whether a tensor's elements lie side by side in memory, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def storages(named: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """The first tensor of each storage."""
    seen: set[int] = set()
    for name, tensor in named:
        key = tensor.untyped_storage()._cdata
        if key not in seen:
            seen.add(key)
            yield name, tensor
