"""The JSON face: the document's `data` with `schema_version` first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qtui.report.document import Document
from qtui_core.codec import printed

SCHEMA_VERSION = 1


def to_json(document: Document, *, ascii: bool = False) -> str:
    """The document's data and its conclusion as JSON text."""
    return json_text({**document.data, "conclusion": document.conclusion}, ascii=ascii)


def json_text(data: Mapping[str, Any], *, ascii: bool = False) -> str:
    """Strict JSON: NaN and infinities become null. Unprintable characters in strings become JSON
    escapes, so that a reader gets the original string back.

    Raises TypeError for data that JSON cannot represent.
    """
    whole = printed({"schema_version": SCHEMA_VERSION, **data})
    text = json.dumps(whole, indent=2, ensure_ascii=ascii, allow_nan=False)
    # Unprintable characters occur only in strings, apart from the ends of lines, and seldom.
    if text.replace("\n", "").isprintable():
        return text + "\n"
    lines = (line if line.isprintable() else _escaped(line) for line in text.split("\n"))
    return "\n".join(lines) + "\n"


def _escaped(line: str) -> str:
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)
