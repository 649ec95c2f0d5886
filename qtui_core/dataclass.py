"""`dataclass` as in the standard library, made faster for commands that answer at once.

The standard one compiles up to six methods for each class, which is half of what importing the
seventy classes of `qtui memory` takes. Here only `__init__` is, and as one expression; the other
methods are written once and read the fields. `fields`, `replace` and `asdict` of `dataclasses` work
on these classes, and type checkers take them for what they look like. Slots, order, fields for
keywords alone and fields made anew that are no arguments are left to the standard one.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True):
        """A class with the fields of its annotations. Those of a `frozen` one do not change; with
        `eq` two are equal where their fields are that compare."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, eq=eq)
        made = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
        fields = dataclasses.fields(made)
        made.__init__ = _init_of(made, fields)
        if "__repr__" not in cls.__dict__:
            made.__repr__ = _repr
        if frozen:
            made.__setattr__ = _refuse
            made.__delattr__ = _refuse
        if eq:
            names = [f.name for f in fields if f.compare]
            made._compared = staticmethod(attrgetter(*names) if names else type)
            made.__eq__ = _equal
            made.__hash__ = _hash if frozen else None
        return made


def _init_of(cls: Any, fields: tuple[dataclasses.Field[Any], ...]) -> Any:
    """A function that puts its arguments, or their defaults, into the dictionary of an instance."""
    known: dict[str, Any] = {}
    taken, put = ["self"], []
    for f in fields:
        default = value = f.name
        if f.default is not dataclasses.MISSING:
            known[f"_{f.name}"] = f.default
            default = f"{f.name}=_{f.name}"
        elif f.default_factory is not dataclasses.MISSING:
            known[f"_{f.name}"] = f.default_factory
            default = f"{f.name}=_{f.name}"
            value = f"_{f.name}() if {f.name} is _{f.name} else {f.name}"
        if f.init:
            taken.append(default)
            put.append(f"{f.name}={value}")
    after = " or self.__post_init__()" if hasattr(cls, "__post_init__") else ""
    init = eval(f"lambda {', '.join(taken)}: self.__dict__.update({', '.join(put)}){after}", known)
    init.__name__ = "__init__"
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {f.name: f.type for f in fields}
    return init


def _repr(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _equal(self: Any, other: Any) -> bool:
    if type(other) is not type(self):
        return NotImplemented
    return bool(self._compared(self) == self._compared(other))


def _hash(self: Any) -> int:
    return hash(self._compared(self))


def _refuse(self: Any, name: str, value: object = None) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot change field {name!r}")


__all__ = ["dataclass"]
