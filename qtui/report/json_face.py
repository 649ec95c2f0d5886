"""The JSON face: the document's `data` with `schema_version` first."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from qtui.report.document import Document

SCHEMA_VERSION = 1
#: What JSON lets a string hold as it is and a terminal obeys: DEL, the C1 control characters,
#: and what turns the direction of writing.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def to_json(document: Document, *, ascii: bool = False) -> str:
    """Strict JSON: what is not a finite number is null, since JSON has no NaN."""
    data = {"schema_version": SCHEMA_VERSION, **document.data, "conclusion": document.conclusion}
    text = json.dumps(finite(data), indent=2, ensure_ascii=ascii, allow_nan=False)
    return _UNPRINTABLE.sub(_escaped, text) + "\n"


def finite(value: Any) -> Any:
    """`value` with null for every NaN and infinity in it: JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match.group()):04x}"
