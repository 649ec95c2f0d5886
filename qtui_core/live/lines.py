"""A header and snapshots as lines of JSON, and back.

One line is one object; `told` says which class of qtui_core.live.snapshot or .header it is, and
its other keys are the fields of that class. Lines are strict JSON: numbers that it has no word
for are the texts "NaN", "Infinity" and "-Infinity". A reader leaves out kinds and fields of later
versions that it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from qtui_core.codec import CodecError, from_plain, to_plain
from qtui_core.errors import QtuiError
from qtui_core.live import snapshot
from qtui_core.live.header import SCHEMA_VERSION, RecordingHeader
from qtui_core.live.snapshot import Snapshot

Told = RecordingHeader | Snapshot

#: Kind -> class.
KINDS: Final[Mapping[str, type[Any]]] = {
    "header": RecordingHeader,
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
#: Bytes of a line that are read at most: a header with all terms of an estimate has some hundred
#: kB, and a device may give zeros without an end.
LONGEST: Final = 16 << 20
_NAMES: Final = {kind: name for name, kind in KINDS.items()}


class LineError(QtuiError):
    """A line is no line of a recording."""


def to_line(told: Told) -> str:
    """One line, without its end."""
    whole = {"told": _NAMES[type(told)], **to_plain(told, strict=True)}
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
    if kind is RecordingHeader and isinstance(version, int) and version > SCHEMA_VERSION:
        raise LineError(
            f"It is of schema {version}, and this program reads up to {SCHEMA_VERSION}; "
            "a newer qtui reads it."
        )
    try:
        told: Told = from_plain(kind, found)
    except CodecError as error:
        raise LineError(
            f"A line of kind {found['told']!r} cannot be read: {error.reason}."
        ) from None
    return told
