"""`dataclass` as in the standard library, but faster to define, for commands that answer at once.

The standard one compiles up to six methods for each class, which is half of the time to import the
seventy classes of `qtui memory`. Here only `__init__` is compiled, as one expression; the other
methods are written once and read the fields. `fields`, `replace` and `asdict` of `dataclasses` work
with these classes, and type checkers see standard dataclasses. For slots, order, keyword-only
fields, and classes that extend one of another kind, use the standard one.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True):
        """Makes a class with the annotated fields. Those of a `frozen` class cannot change; with
        `eq`, two instances are equal if their fields with `compare` are."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, eq=eq)
        cls.__doc__ = cls.__doc__ or cls.__name__  # or inspect parses a signature, for 6 ms
        made = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
        fields = dataclasses.fields(made)
        if any(f.kw_only or f.hash is not None for f in fields):
            raise TypeError(f"{cls.__qualname__} has fields for the standard dataclass")
        methods = {"__init__": _init_of(made, fields), "__repr__": _repr}
        if frozen:
            methods |= {"__setattr__": _refuse, "__delattr__": _refuse}
        if eq:
            names = [f.name for f in fields if f.compare]
            # attrgetter of one name gives no tuple; in a tuple, identical parts are equal (NaN).
            values = attrgetter(*names, names[0]) if names else type
            made._compared = staticmethod(values)
            methods |= {"__eq__": _equal, "__hash__": _hash if frozen else None}
        for name, method in methods.items():
            # Methods of the class itself have priority. Its __hash__ is None if it defines only
            # __eq__.
            if cls.__dict__.get(name) is None:
                setattr(made, name, method)
        return made


def _init_of(cls: Any, fields: tuple[dataclasses.Field[Any], ...]) -> Any:
    """A function that puts its arguments, or their defaults, into the dictionary of an instance."""
    known: dict[str, Any] = {"_unset_": dataclasses.MISSING}
    taken, put = ["self"], []
    for f in fields:
        argument = value = f.name
        made = f"_make_{f.name}()"
        if f.default is not dataclasses.MISSING:
            known[f"_default_{f.name}"] = f.default
            argument = f"{f.name}=_default_{f.name}"
        elif f.default_factory is not dataclasses.MISSING:
            known[f"_make_{f.name}"] = f.default_factory
            argument = f"{f.name}=_unset_"
            value = f"{made} if {f.name} is _unset_ else {f.name}"
        if f.init:
            taken.append(argument)
            put.append(f"{f.name}={value}")
        elif f.default is dataclasses.MISSING:
            put.append(f"{f.name}={made}")
    after = " or self.__post_init__()" if hasattr(cls, "__post_init__") else ""
    init = eval(f"lambda {', '.join(taken)}: self.__dict__.update({', '.join(put)}){after}", known)
    init.__name__ = "__init__"
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {f.name: f.type for f in fields}
    return init


def _repr(self: Any) -> str:
    parts = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(parts)})"


def _equal(self: Any, other: Any) -> bool:
    if type(other) is not type(self):
        return NotImplemented
    return bool(self._compared(self) == self._compared(other))


def _hash(self: Any) -> int:
    return hash(self._compared(self))


def _refuse(self: Any, name: str, *value: object) -> None:
    what = "assign to" if value else "delete"
    raise dataclasses.FrozenInstanceError(f"cannot {what} field {name!r}")
