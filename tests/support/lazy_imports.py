"""Libraries that take seconds to import are imported by the first test that uses them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyImport:
    """Stands in for a module, or for a name in it, and imports it at the first use.

    `torch = LazyImport("torch")` or `profile = LazyImport("torch.profiler", "profile")` at the top
    of a test file costs nothing while pytest collects tests. The stand-in can be called and used in
    isinstance like the original, but not as a base class or as an exception to catch. To replace
    something in the module, a test names it as text: `monkeypatch.setattr("torch.mm", ...)`.
    """

    def __init__(self, module: str, name: str = "") -> None:
        object.__setattr__(self, "_where", (module, name))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks for its own marks on everything in a file
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


def lazy_names(module: str, *names: str) -> list[LazyImport]:
    """A lazy `from module import a, b`: `a, b = lazy_names("module", "a", "b")`."""
    return [LazyImport(module, name) for name in names]


def _real(stand_in: LazyImport) -> Any:
    module, name = stand_in._where
    found = import_module(module)
    return getattr(found, name) if name else found
