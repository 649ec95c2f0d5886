"""Libraries that take seconds to import: imported by the first test that uses them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Late:
    """Stands for a module, or for what has a name in it, until something of it is asked for.

    `torch = Late("torch")`, or `profile = Late("torch.profiler", "profile")` at the top of a file
    costs nothing while tests are collected. It is called, and tells what is of its kind, as what it
    stands for does; but it is no base class, and no exception to wait for. What a test replaces it
    names as text: `monkeypatch.setattr("torch.mm", ...)`.
    """

    def __init__(self, module: str, name: str = "") -> None:
        object.__setattr__(self, "_where", (module, name))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks for marks of its own on whatever stands in a file
            raise AttributeError(name)
        return getattr(_real(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_real(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_real(self), name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return _real(self)(*args, **options)

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, _real(self))


def late_names(module: str, *names: str) -> list[Late]:
    """`from module import a, b`, late: `a, b = late_names("module", "a", "b")`."""
    return [Late(module, name) for name in names]


def _real(late: Late) -> Any:
    module, name = late._where
    found = import_module(module)
    return getattr(found, name) if name else found
