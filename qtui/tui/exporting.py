"""Files written from the app: the picture of the screen, and the data behind it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from qtui.report.json_face import SCHEMA_VERSION, finite


def export(
    folder: Path, panel_id: str, picture: str, data: Mapping[str, Any] | None
) -> tuple[Path, ...]:
    """Writes `picture` (SVG) and, where there are any, `data` (JSON); returns their paths.

    Numbers that JSON cannot hold become null. Raises OSError when a file cannot be written, and
    TypeError for data that is no JSON; nothing is written then.
    """
    text = None
    if data is not None:
        document = finite({"schema_version": SCHEMA_VERSION, "panel": panel_id, **data})
        text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    stem = folder / f"qtui-{panel_id}-{datetime.now():%Y%m%d-%H%M%S}"
    written = [stem.with_suffix(".svg")]
    written[0].write_text(picture, encoding="utf-8")
    if text is not None:
        written.append(stem.with_suffix(".json"))
        written[1].write_text(text, encoding="utf-8")
    return tuple(written)
