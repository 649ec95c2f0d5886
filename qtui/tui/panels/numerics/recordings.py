"""Recordings of experiments: where they are kept, and one that is written as a run goes on."""

from __future__ import annotations

import re
from datetime import datetime
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from qtui.tui.config import log_file
from qtui_core.errors import QtuiError
from qtui_core.files import Target
from qtui_core.lab.recording import LAB_LINES
from qtui_core.lab.results import LabTold
from qtui_core.recorded_lines import Recorder

#: The oldest goes first.
KEPT: Final = 60
_OWN: Final = re.compile(r"lab-([a-z0-9-]+)-\d{8}-\d{6}(-\d+)?\.jsonl")


def lab_recordings() -> Path:
    """The folder of recordings, beside the log."""
    return log_file().with_name("lab")


def kept_of(experiment: str, folder: Path) -> list[Path]:
    """The recordings of an experiment that are kept there, the oldest first."""
    if not folder.is_dir():
        return []
    found = ((path, _OWN.fullmatch(path.name)) for path in folder.iterdir())
    return sorted(path for path, match in found if match and match[1] == experiment)


class LabKeeper:
    """Records an experiment, in a `with` statement. A disk that takes nothing stops the recording
    and not the run.

    Attributes:
        path: of the recording; None where there is none.
        complaint: a sentence on a recording that could not be made, or ends before the run does.
    """

    def __init__(self, experiment: str, folder: Path | None = None) -> None:
        self._experiment = experiment
        self._folder = folder or lab_recordings()
        self._recorder: Recorder[LabTold] | None = None
        self.path: Path | None = None
        self.complaint = ""

    def __enter__(self) -> Self:
        return self

    def write(self, told: LabTold) -> None:
        """Adds a line, as long as there is a recording."""
        if self.complaint:
            return
        try:
            if self._recorder is None:
                self._recorder = self._begin()
            self._recorder.write(told)
        except (OSError, QtuiError) as error:
            why = (error.strerror if isinstance(error, OSError) else "") or f"{error}".rstrip(".")
            what = "The run is not recorded" if self.path is None else "The recording is cut off"
            self.complaint = f"{what}: {why}."
            self.path = None

    def _begin(self) -> Recorder[LabTold]:
        self._folder.mkdir(parents=True, exist_ok=True)
        stem = f"lab-{self._experiment}-{datetime.now():%Y%m%d-%H%M%S}"
        names = (f"{stem}.jsonl" if at == 1 else f"{stem}-{at}.jsonl" for at in count(1))
        path = next(p for p in map(self._folder.joinpath, names) if not p.exists())
        self._forget_old()
        self.path = path
        return Recorder(Target(str(path), path), LAB_LINES.to_line)

    def _forget_old(self) -> None:
        """Recordings of this panel alone: a file that a user put there has another name."""
        kept = [path for path in self._folder.iterdir() if _OWN.fullmatch(path.name)]
        for path in sorted(kept, key=lambda path: path.stat().st_mtime)[: 1 - KEPT]:
            path.unlink(missing_ok=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._recorder is not None:
            self._recorder.__exit__(kind, error, traceback)
