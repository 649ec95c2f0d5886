"""Where in a model an operation belongs: the module whose forward ran it, or whose backward.

Hooks on modules keep a stack in the forward pass. Autograd numbers its nodes in the order they are
made, so the numbers at which modules were entered and left tell, in the backward pass, which
module a node comes from. Layers are announced when their forward begins and when the first node
of their backward does.
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
    """The module that is at work, by its name in the model, or in its layer where it is of one;
    "" outside of all."""

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
        """(layer, name in it) of a tensor with a name in the model."""
        return place_in(self.stacks, name)

    def watch(self, model: nn.Module) -> None:
        """Follows the modules of a model from now on."""
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
    """Calls `announce(index, direction)` when the forward of a layer begins, when its backward
    does, and with index OUTSIDE when the last forward, and the first layer's backward, are over.

    A forward that checkpointing runs again belongs to the backward of its layer and is not
    announced.
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
    """Announces `index` when the node that made a tensor runs backward."""
    node = getattr(tensor, "grad_fn", None)
    if node is not None:
        node.register_prehook(lambda _gradients: announce(index, BACKWARD))
