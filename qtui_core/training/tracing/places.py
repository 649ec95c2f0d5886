"""Finds the module that an operation belongs to: the one whose forward pass ran it, or whose
backward pass did.

In the forward pass, hooks on modules keep a stack. Autograd numbers its nodes in the order in which
they are created. The numbers at which modules were entered and left are recorded, and in the
backward pass they tell which module a node comes from. A layer is announced when its forward pass
begins, and again when the first node of its backward pass runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from qtui_core.memory.replay.record import BACKWARD, FORWARD, OUTSIDE
from qtui_core.training.model.stacks import Stack, place_in


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
