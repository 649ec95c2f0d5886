"""Counts what torch dispatches. Import it late, because its classes extend torch's."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Traffic(TorchDispatchMode):
    """Bytes that operations read and write; each tensor counts once per operation."""

    #: These use only the shape of a tensor, or one element of each row.
    UNREAD = ("nll_loss_forward", "nll_loss_backward")

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        name = func.overloadpacket.__name__
        given = {id(t): t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        made = {id(t): t for t in tree_leaves(result) if isinstance(t, torch.Tensor)}
        if func.is_view or name in ("detach", "_unsafe_view", "empty_like", "alias"):
            return result
        if name.endswith("_") and not made:
            made = {id(t): t for t in tree_leaves(args[0])}  # in place, over a list
        if name not in self.UNREAD:
            self.bytes += sum(t.nbytes for t in given.values())
        self.bytes += sum(t.nbytes for t in made.values())
        return result


class Live(TorchDispatchMode):
    """Bytes of the storages that are made while it is entered: alive now, and at most."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self._watched = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {
            t.untyped_storage()._cdata
            for t in tree_leaves((args, kwargs))
            if isinstance(t, torch.Tensor)
        }
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                key = storage._cdata
                if key not in given and key not in self._watched:
                    self._watched[key] = weakref.finalize(
                        storage, self._gone, key, storage.nbytes()
                    )
                    self.now += storage.nbytes()
                    self.peak = max(self.peak, self.now)
        return result

    def _gone(self, key, nbytes):
        del self._watched[key]
        self.now -= nbytes
