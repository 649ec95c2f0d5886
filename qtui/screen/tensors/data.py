"""What the engine answers, typed, for the Quantize panel. No numpy here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

Record = TypeVar("Record")


def build(record: type[Record], data: Mapping[str, Any]) -> Record:
    """The dataclass from the keys it has; others are left out."""
    names = [field.name for field in dataclasses.fields(record)]  # type: ignore[arg-type]
    return record(**{name: data[name] for name in names})
