"""Hooks on the modules of a model, for as long as a block runs. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import nn


@contextmanager
def hooked(
    modules: Mapping[str, nn.Module], after: Callable[[str, Any, Any], None]
) -> Iterator[None]:
    """Within the block, `after(name, x, output)` is called after each forward pass of a module; `x`
    is its first input, None without one."""

    def hook(name: str, module: nn.Module, inputs: Any, named: Any, output: Any) -> None:
        after(name, next(iter((*inputs, *named.values())), None), output)

    with ExitStack() as stack:
        for name, module in modules.items():
            handle = module.register_forward_hook(partial(hook, name), with_kwargs=True)
            stack.callback(handle.remove)
        yield
