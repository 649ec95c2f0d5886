"""The recordings of experiments on disk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from qtui.screen.keeper import Keeper
from qtui.tui.config import log_file
from qtui_core.lab.recording import LAB_LINES
from qtui_core.lab.results import LabBegun, LabEvent

#: The most recordings that are kept; the oldest is deleted first.
KEPT: Final = 60
_OWN: Final = re.compile(r"lab-([a-z0-9-]+)-\d{8}-\d{6}(-\d+)?\.jsonl")


def lab_recordings() -> Path:
    """The folder of recordings, beside the log."""
    return log_file().with_name("lab")


def kept_of(experiment: str, folder: Path) -> list[Path]:
    """The recordings of an experiment in the folder, the oldest first."""
    if not folder.is_dir():
        return []
    found = ((path, _OWN.fullmatch(path.name)) for path in folder.iterdir())
    return sorted(path for path, match in found if match and match[1] == experiment)


def newest_first(folder: Path) -> list[Path]:
    """The recordings of all experiments in the folder."""
    found = [path for path in folder.glob("lab-*.jsonl") if _OWN.fullmatch(path.name)]
    return sorted(found, key=lambda path: path.stem.split("-")[-2:], reverse=True)


def lab_keeper(experiment: str, folder: Path | None = None) -> Keeper[LabEvent]:
    """A writer of an experiment's recording, from its first message on."""
    stem = f"lab-{experiment}"
    return Keeper(folder or lab_recordings(), stem, KEPT, LAB_LINES.to_line, LabBegun)
