"""Libraries that take seconds to import: imported by the first test that uses them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Late:
    """Stands for a module until something of it is asked for.

    `torch = Late("torch")` at the top of a file costs nothing while tests are collected.
    """

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks for marks of its own on whatever stands in a file
            raise AttributeError(name)
        return getattr(import_module(self._name), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(import_module(self._name), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(import_module(self._name), name)
