"""Recordings as JSON, and kept in a folder."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from qtui_core.memory.formulas.size import factors_of, product_of
from qtui_core.memory.replay.record import ALLOCATE, Component, Event, Label, Recording

#: The most recordings in a folder; each takes some 100 kB.
_MOST: Final = 100


def written(recording: Recording) -> dict[str, Any]:
    """The recording as plain values."""
    return {"events": [_written(event) for event in recording.events], "origin": recording.origin}


def read(found: Mapping[str, Any]) -> Recording:
    """The recording of plain values. Raises KeyError, TypeError or ValueError for others."""
    return Recording(tuple(_read(event) for event in found["events"]), found["origin"])


def known(path: Path) -> Recording | None:
    """The recording in a file; None without one, or if the file was cut or changed."""
    try:
        return read(json.loads(gzip.decompress(path.read_bytes())))
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError):
        return None  # it is made, or made anew


def keep(path: Path, text: str) -> None:
    """Keeps the JSON of a recording; drops the oldest ones. Where a disk is full or closed nothing
    is kept, and the next time takes as long."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_bytes(gzip.compress(text.encode(), 1, mtime=0))
        os.replace(beside, path)
        oldest = sorted(path.parent.glob("*.gz"), key=lambda each: each.stat().st_mtime)
        for each in oldest[:-_MOST]:
            each.unlink()


def _written(event: Event) -> list[Any]:
    if event[0] != ALLOCATE:
        return list(event)
    label: Label = event[3]
    component = label.component and label.component.value
    return [*event[:3], label.what, component, factors_of(event[2])]


def _read(event: list[Any]) -> Event:
    if event[0] != ALLOCATE:
        return tuple(event)
    kind, number, nbytes, what, component, factors = event
    size = product_of(factors) if factors else nbytes
    return (kind, number, size, Label(what, component and Component(component)))
