"""Answers as JSON, and back: one form for the engine's lines, recordings and profiles.

`to_plain` turns an answer into values for `json`. `from_plain` makes the answer again, by the
declared types of its fields:

- a dataclass is an object with the names of its fields; a NamedTuple is a list, which is shorter
  where there are many;
- tuples and lists are lists, mappings are objects, an enum is its value;
- a class with `parse` and a text (`Scheme`) is that text, and so is a Fraction;
- if a field may be one of several dataclasses, "is" names which.

Only fields are sent; what is computed from them is computed again. A reader ignores names that it
does not know, which are from a later version, and uses the default of a missing field.

`printed` is what `--json` prints, which is never read back: scripts rely on its names and their
order. A class that prints other names than its fields lists them as PRINTED.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from fractions import Fraction
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from qtui_core.errors import QtuiError

T = TypeVar("T")
Reader = Callable[[Any], Any]
#: The name of an attribute that has the same name in JSON; or the name in JSON and where the value
#: is: the path of an attribute, a function of the answer, or rows that make an object from the same
#: answer. Names of a part that is printed under "" are merged into the object around it.
Row = str | tuple[str, str | Callable[[Any], Any] | tuple[Any, ...]]

#: The name under which an object says which of several dataclasses it is.
TAG: Final = "is"
_has_fields: Callable[[Any], bool] = is_dataclass  # which tells mypy more than it need know


class CodecError(QtuiError):
    """The JSON does not match the declared type; `reason` is the place and what is wrong there."""

    def __init__(self, kind: type[Any], reason: str) -> None:
        super().__init__(f"It is no {getattr(kind, '__name__', kind)}: {reason}.")
        self.reason = reason


def to_plain(value: Any, *, strict: bool = False, tagged: bool = False) -> Any:
    """The value as dictionaries, lists, texts, numbers, True, False and None.

    NaN and infinities, which JSON does not have, are kept, or become the texts "NaN", "Infinity"
    and "-Infinity" if `strict`. With `tagged`, a dataclass says which it is. Raises TypeError for a
    value that has no such form.
    """
    kind: Any = type(value)
    if value is None or kind in (str, int, bool):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):  # also numpy's
        number = float(value)
        if strict and not math.isfinite(number):
            return "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"
        return number
    if isinstance(value, Mapping):
        return {_key(k): to_plain(v, strict=strict, tagged=tagged) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item, strict=strict, tagged=tagged) for item in value]
    if _is_text(kind):
        return str(value)
    if _has_fields(kind):
        plain = {TAG: kind.__name__} if tagged else {}
        unions = _tagged_fields(kind)
        for name in _names(kind):
            plain[name] = to_plain(getattr(value, name), strict=strict, tagged=name in unions)
        return plain
    if isinstance(value, int):  # also a Size of the tape
        return int(value)
    raise TypeError(f"{kind.__qualname__} has no form in JSON")


def to_line(value: Any) -> str:
    """A line of JSON without blanks. NaN and infinities are written as `NaN`, `Infinity` and
    `-Infinity`, which Python reads."""
    return json.dumps(value, separators=(",", ":"), default=_one_level)


def _one_level(value: Any) -> Any:
    """For the json module: the form of a value that it does not know, with the parts unchanged."""
    kind: Any = type(value)
    if _has_fields(kind) and not _is_text(kind) and not _tagged_fields(kind):
        return {name: getattr(value, name) for name in _names(kind)}
    return to_plain(value)


def printed(value: Any, rows: Sequence[Row] | None = None) -> Any:
    """What `--json` prints of an answer: its `rows`; else the PRINTED of its class, or its fields.

    A number that is not finite becomes None, as JSON has none. Raises TypeError for a value that
    has no such form.
    """
    kind: Any = type(value)
    if kind is str or kind is int or value is None:
        return value
    if rows is None and not _is_object(kind):
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else None
        if isinstance(value, Mapping):
            return {_key(key): printed(item) for key, item in value.items()}
        if isinstance(value, tuple | list):
            return [printed(item) for item in value]
        return str(value) if isinstance(value, Path) else to_plain(value)
    found: dict[str, Any] = {}
    for row in rows or getattr(kind, "PRINTED", None) or _names(kind):
        name, where = _printer(row)
        part = printed(value, where) if isinstance(where, tuple) else printed(where(value))
        found |= {name: part} if name else part
    return found


@cache
def _printer(row: Row) -> tuple[str, Any]:
    """What is printed for a row, by name: a function of the answer, or the rows of an object."""
    name, where = (row, row) if isinstance(row, str) else row
    return name, attrgetter(where) if isinstance(where, str) else where


def or_null(path: str) -> Callable[[Any], Any]:
    """For a row of PRINTED: reads the attribute with that path, None if it is empty."""
    return lambda value: attrgetter(path)(value) or None


def from_plain(kind: type[T], found: Any) -> T:
    """The instance of `kind` that the plain value `found` describes.

    Raises CodecError, with the place, if a field is missing, if a value has another type, or if the
    class itself refuses it.
    """
    read: Reader = _reader(cast(Any, kind))
    try:
        made: T = read(found)
    except (ValueError, RecursionError) as error:
        raise CodecError(kind, str(error)) from None
    return made


def _key(key: Any) -> str:
    return str(key.value if isinstance(key, Enum) else key)


@cache
def _is_text(kind: Any) -> bool:
    return kind is Fraction or (hasattr(kind, "parse") and "__str__" in kind.__dict__)


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(entry.name for entry in fields(kind) if entry.init)


@cache
def _tagged_fields(kind: Any) -> frozenset[str]:
    """The fields that may be one of several dataclasses, or contain such."""
    hints = get_type_hints(kind)
    return frozenset(name for name in _names(kind) if _is_tagged(hints[name]))


def _is_tagged(hint: Any) -> bool:
    inner = [part for part in get_args(hint) if part is not Ellipsis]
    if get_origin(hint) in (UnionType, Union):
        return sum(map(_is_object, inner)) > 1 or any(map(_is_tagged, inner))
    return any(map(_is_tagged, inner))


@cache
def _is_object(hint: Any) -> bool:
    return _has_fields(hint) and not _is_text(hint)


@cache
def _reader(hint: Any) -> Reader:
    """A function that reads a value of the type, and raises ValueError for another one."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: value
    if origin in (UnionType, Union):
        objects = {part.__name__: _reader(part) for part in inner if _is_object(part)}
        objects = objects if len(objects) > 1 else {}  # else there is nothing to tell apart
        others = [part for part in inner if not (objects and _is_object(part))]
        readers = [_reader(part) for part in others if part is not NoneType]
        return partial(_union, NoneType in inner, objects, readers)
    if origin is Literal or hint is NoneType:
        words = inner or (None,)
        return partial(_one_of, words, words)
    if origin in (tuple, list):
        items = [_reader(part) for part in inner if part is not Ellipsis]
        return partial(_sequence, origin, items, origin is list or Ellipsis in inner)
    if origin is not None and issubclass(origin, Mapping):
        return partial(_mapping, int if inner[0] is int else str, *map(_reader, inner))
    if not isinstance(hint, type):
        raise TypeError(f"{hint!r} has no form in JSON")
    if _is_text(hint):
        return partial(_text, _fraction if hint is Fraction else cast(Any, hint).parse)
    if _has_fields(hint):
        return partial(_object, hint)
    if issubclass(hint, Enum):
        members = tuple(hint)
        return partial(_one_of, [member.value for member in members], members)
    if issubclass(hint, tuple):  # a NamedTuple, which is a list of its fields
        hints, make = get_type_hints(hint), cast(Any, hint)
        fields_of = [_reader(hints[name]) for name in make._fields]
        return lambda value: make(*_sequence(tuple, fields_of, False, value))
    if hint is float:
        return _float
    if hint in (bool, int, str):
        return partial(_scalar, hint)
    raise TypeError(f"{hint!r} has no form in JSON")


@cache  # at the first use: a class may contain others of its own kind
def _entries(kind: Any) -> Sequence[tuple[str, Reader, bool]]:
    """The name of each field, its reader, and whether it has no default."""
    hints = get_type_hints(kind)
    return [
        (f.name, _reader(hints[f.name]), f.default is MISSING and f.default_factory is MISSING)
        for f in fields(kind)
        if f.init
    ]


def _object(kind: type[Any], value: Any) -> Any:
    if type(value) is kind:  # it was passed beside the JSON
        return value
    if not isinstance(value, dict):
        raise ValueError(f"{kind.__name__} is no object")
    given = {}
    for name, read, required in _entries(cast(Any, kind)):
        if name in value:
            given[name] = _at(name, read, value[name])
        elif required:
            raise ValueError(f"{name} is missing")
    return _made(kind, **given)


def _union(
    nullable: bool, objects: Mapping[str, Reader], others: Sequence[Reader], value: Any
) -> Any:
    if value is None and nullable:
        return None
    if objects and isinstance(value, dict):
        name = value.get(TAG)
        if not isinstance(name, str) or name not in objects:
            raise ValueError(f"{name!r:.40} is none of {', '.join(objects)}")
        return objects[name](value)
    refusals = []
    for read in others:
        try:
            return read(value)
        except ValueError as error:
            refusals.append(str(error))
    raise ValueError(", and ".join(refusals) or f"{value!r:.40} says not which it is")


def _sequence(kind: type[Any], parts: Sequence[Reader], repeated: bool, value: Any) -> Any:
    if not isinstance(value, list) or not (repeated or len(value) == len(parts)):
        raise ValueError(f"{value!r:.40} is no list as it should be")
    if repeated:
        return kind(map(parts[0], value))
    return kind(read(item) for read, item in zip(parts, value, strict=True))


def _mapping(
    key_of: Callable[[str], Any], read_key: Reader, read_item: Reader, value: Any
) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.40} is no object")
    return {read_key(key_of(key)): _at(key, read_item, item) for key, item in value.items()}


def _one_of(words: Sequence[Any], values: Sequence[Any], value: Any) -> Any:
    """The one of `values` that stands beside the word."""
    for word, meant in zip(words, values, strict=True):
        if type(value) is type(word) and value == word:
            return meant
    raise ValueError(f"{value!r:.40} is none of {', '.join(map(str, words))}")


def _text(make: Callable[[str], Any], value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is no text")
    return _made(make, value)


def _fraction(text: str) -> Fraction:
    # Two whole numbers only: an exponent could require any amount of memory.
    above, _, below = text.partition("/")
    return Fraction(int(above), int(below or 1))


def _scalar(kind: type[Any], value: Any) -> Any:
    # A bool is an int in Python, but here the two are different types.
    if type(value) is not kind:
        raise ValueError(f"{value!r:.40} is not of type {kind.__name__}")
    return value


def _float(value: Any) -> float:
    if type(value) is float:
        return value
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    if type(value) is not int:
        raise ValueError(f"{value!r:.40} is no number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("a number is too large") from None


def _at(place: str, read: Reader, value: Any) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _made(make: Callable[..., T], *values: Any, **given: Any) -> T:
    """What `make` returns; a ValueError instead of whatever the class raises."""
    try:
        return make(*values, **given)
    except (QtuiError, TypeError, ArithmeticError) as error:
        raise ValueError(str(error)) from None
