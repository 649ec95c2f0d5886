"""`dataclass` as in the standard library, made faster for commands that answer at once.

The standard one compiles up to six methods for each class, which is half of what importing the
seventy classes of `qtui memory` takes. Here only `__init__` is; the other methods are written once
and read the fields. `fields`, `replace` and `asdict` of `dataclasses` work on these classes, and
type checkers take them for what they look like. Slots and order are left to the standard one.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True):
        """A class with the fields of its annotations. Of a `frozen` one each field is set once, by
        `__init__`; with `eq` two are equal where their fields are that compare."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, eq=eq)
        made = dataclasses.dataclass(repr=False, eq=False)(cls)
        if "__repr__" not in cls.__dict__:
            made.__repr__ = _repr
        if frozen:
            made.__setattr__ = _set_once
            made.__delattr__ = _refuse
        if eq:
            names = [f.name for f in dataclasses.fields(made) if f.compare]
            made._compared = staticmethod(attrgetter(*names) if names else type)
            made.__eq__ = _equal
            made.__hash__ = _hash if frozen else None
        return made


def _repr(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _equal(self: Any, other: Any) -> bool:
    if type(other) is not type(self):
        return NotImplemented
    return bool(self._compared(self) == self._compared(other))


def _hash(self: Any) -> int:
    return hash(self._compared(self))


def _set_once(self: Any, name: str, value: object) -> None:
    if name in self.__dict__ or name not in self.__dataclass_fields__:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    self.__dict__[name] = value


def _refuse(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


__all__ = ["dataclass"]
