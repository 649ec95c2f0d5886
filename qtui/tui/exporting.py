"""Files written by the app: the picture of the screen, and its data."""

from __future__ import annotations

import csv
import io
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtui.report.faces.json_face import json_text
from qtui.screen.panel.base import Panel
from qtui.screen.panel.host import Severity
from qtui.tui.terminal import one_line
from qtui_core.errors import QtuiError
from qtui_core.files import target_of
from qtui_core.models.quoting import printable

if TYPE_CHECKING:
    from qtui.tui.app import QtuiApp

log = logging.getLogger("qtui.tui")


def exported(app: QtuiApp, panel: Panel) -> tuple[str, Severity]:
    """Writes what a panel exports, with a picture of its own or one of the screen, and says what
    happened."""
    try:
        folder = Path(os.path.expanduser(app.config.export_folder))
        own = panel.export_picture() or app.export_screenshot(title="qtui")
        names = export(folder, panel.PANEL_ID, own, panel.export_data(), panel.export_table())
    except QtuiError as error:
        return f"Nothing was exported: {one_line(error)}", "error"
    except Exception as error:
        # Any error in a panel's data: the work on the screen matters more than the file.
        log.exception("export")
        return f"Nothing was exported: {one_line(error)}", "error"
    *others, last = map(str, names)
    return f"Wrote {' and '.join(filter(None, (', '.join(others), last)))}.", "information"


def export(
    folder: Path,
    panel_id: str,
    picture: str,
    data: Mapping[str, Any] | None,
    table: Iterable[Sequence[object]] | None = None,
) -> tuple[Path, ...]:
    """Writes `picture` (SVG) and, if present, `data` (JSON) and `table` (CSV); returns their paths,
    which share a new name.

    Numbers that JSON cannot represent become null. Raises QtuiError if a file cannot be written,
    and TypeError for data that JSON cannot represent; then no file is left behind.
    """
    texts = {".svg": picture}
    if data is not None:
        texts[".json"] = json_text({"panel": panel_id, **data})
    if table is not None:
        lines = io.StringIO()
        shown = ([printable(c) if isinstance(c, str) else c for c in row] for row in table)
        csv.writer(lines, lineterminator="\n").writerows(shown)
        texts[".csv"] = lines.getvalue()
    stem = _unused(folder / f"qtui-{panel_id}-{datetime.now():%Y%m%d-%H%M%S}", texts)
    written: list[Path] = []
    try:
        for suffix, text in texts.items():
            path = stem.with_suffix(suffix)
            target_of(str(path)).write(text)
            written.append(path)
    except QtuiError:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    return tuple(written)


def _unused(stem: Path, suffixes: Iterable[str]) -> Path:
    """The stem, with a number if needed so that no such file exists."""
    endings = tuple(suffixes)
    for number in count(1):
        found = stem if number == 1 else stem.with_name(f"{stem.name}-{number}")
        if not any(found.with_suffix(ending).exists() for ending in endings):
            return found
    raise AssertionError("numbers do not end")
