"""A header and snapshots as lines of JSON, and back.

One line is one object; `told` says which class of qtui_core.live.snapshot or .header it is, and
its other keys are the fields of that class. Lines are strict JSON: numbers that it has no word
for are the texts "NaN", "Infinity" and "-Infinity". A reader leaves out kinds and fields of later
versions that it does not know.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from qtui_core.errors import QtuiError
from qtui_core.live import snapshot
from qtui_core.live.header import SCHEMA_VERSION, Header
from qtui_core.live.snapshot import Snapshot

Told = Header | Snapshot

#: Kind -> class.
KINDS: Final[Mapping[str, type[Any]]] = {
    "header": Header,
    "phase begun": snapshot.PhaseBegun,
    "phase ended": snapshot.PhaseEnded,
    "sample": snapshot.Sample,
    "step": snapshot.StepTaken,
    "adapters": snapshot.AdaptersCompared,
    "said": snapshot.Said,
    "fault": snapshot.Fault,
    "state": snapshot.State,
    "end": snapshot.End,
}
_NAMES: Final = {kind: name for name, kind in KINDS.items()}
_FLOATS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class LineError(QtuiError):
    """A line is no line of a recording."""


def to_line(told: Told) -> str:
    """One line, without its end."""
    whole = {"told": _NAMES[type(told)], **_plain(told)}
    return json.dumps(whole, separators=(",", ":"), allow_nan=False)


def from_line(line: str | bytes) -> Told | None:
    """What a line says; None for a kind of a later version.

    Raises LineError for what is no line of JSON, lacks a field or has one of another type, and
    for a header of a later schema than this program knows.
    """
    try:
        found = json.loads(line)
    except ValueError:
        raise LineError("It is no line of JSON.") from None
    if not isinstance(found, dict) or not isinstance(found.get("told"), str):
        raise LineError("It does not say which kind of line it is.")
    kind = KINDS.get(found["told"])
    if kind is None:
        return None
    version = found.get("schema_version")
    if kind is Header and isinstance(version, int) and version > SCHEMA_VERSION:
        raise LineError(
            f"It is of schema {version}, and this program reads up to {SCHEMA_VERSION}; "
            "a newer qtui reads it."
        )
    try:
        told: Told = _read(kind, found)
    except ValueError as error:
        raise LineError(f"A line of kind {found['told']!r} cannot be read: {error}.") from None
    return told


def _plain(value: Any) -> Any:
    """What JSON has words for."""
    if is_dataclass(value):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _read(kind: Any, found: Any) -> Any:
    """An instance of a data class from an object of JSON. Raises ValueError."""
    if not isinstance(found, dict):
        raise ValueError(f"{kind.__name__} is no object")
    given = {}
    for name, read, required in _fields(kind):
        if name not in found:
            if required:
                raise ValueError(f"{name} is missing")
            continue
        try:
            given[name] = read(found[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return kind(**given)


@cache
def _fields(kind: Any) -> tuple[tuple[str, Callable[[Any], Any], bool], ...]:
    """(name, reader, whether it must be there) of the fields of a data class."""
    hints = get_type_hints(kind)
    return tuple(
        (
            entry.name,
            _reader(hints[entry.name]),
            entry.default is MISSING and entry.default_factory is MISSING,
        )
        for entry in fields(kind)
    )


def _reader(hint: Any) -> Callable[[Any], Any]:
    """Reads a value of a type; what it gives raises ValueError for another one."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: value
    if origin is UnionType:
        return _optional(next(_reader(part) for part in inner if part is not NoneType))
    if origin is tuple:
        return _sequence(tuple(_reader(part) for part in inner if part is not Ellipsis), inner)
    if origin is not None:  # Mapping[str, ...], the only other one there is.
        return _mapping(_reader(inner[1]))
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value: _read(hint, value)
    return _float if hint is float else _scalar(hint)


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _sequence(parts: tuple[Callable[[Any], Any], ...], hints: tuple[Any, ...]) -> Any:
    repeated = Ellipsis in hints

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or not (repeated or len(value) == len(parts)):
            raise ValueError(f"{value!r:.40} is no list as it should be")
        readers = parts * len(value) if repeated else parts
        return tuple(reader(item) for reader, item in zip(readers, value, strict=True))

    return read


def _mapping(read_item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError(f"{value!r:.40} is no object")
        return {key: read_item(item) for key, item in value.items()}

    return read


def _scalar(kind: type[Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        # A bool is an int to Python, but none of these is both.
        if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
            raise ValueError(f"{value!r:.40} is not of type {kind.__name__}")
        return value

    return read


def _float(value: Any) -> float:
    if isinstance(value, str) and value in _FLOATS:
        return _FLOATS[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r:.40} is no number")
    return float(value)
