"""Recordings of the runs of this panel, of which the last ones are kept."""

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
from qtui_core.live.header import Header
from qtui_core.live.lines import Told
from qtui_core.live.recording import Recorder

#: The oldest goes first.
KEPT: Final = 20
_OWN: Final = re.compile(r"run-\d{8}-\d{6}(-\d+)?\.jsonl")


def recordings() -> Path:
    """The folder of recordings, beside the log."""
    return log_file().with_name("runs")


class Keeper:
    """Records a run from its header on, in a `with` statement. A disk that takes nothing stops the
    recording and not the run.

    Attributes:
        path: of the recording; None before the header, and where none could be made.
        complaint: a sentence on a recording that could not be made, or ends before the run does.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or recordings()
        self._recorder: Recorder | None = None
        self.path: Path | None = None
        self.complaint = ""

    def __enter__(self) -> Self:
        return self

    def write(self, told: Told) -> None:
        """Adds a line, as long as there is a recording."""
        if self.complaint:
            return
        try:
            if self._recorder is not None:
                self._recorder.write(told)
            elif isinstance(told, Header):
                self._begin(told)
        except (OSError, QtuiError) as error:
            why = (error.strerror if isinstance(error, OSError) else "") or f"{error}".rstrip(".")
            what = "The run is not recorded" if self.path is None else "The recording is cut off"
            self.complaint = f"{what}: {why}."

    def _begin(self, header: Header) -> None:
        """The recording with its first line; then the oldest goes."""
        self._folder.mkdir(parents=True, exist_ok=True)
        stem = f"run-{datetime.now():%Y%m%d-%H%M%S}"
        names = (f"{stem}.jsonl" if at == 1 else f"{stem}-{at}.jsonl" for at in count(1))
        for path in map(self._folder.joinpath, names):
            if path.exists():
                continue
            recorder = Recorder(Target(str(path), path))
            try:
                recorder.write(header)
            except OSError as error:
                recorder.__exit__(type(error), error, None)
                if isinstance(error, FileExistsError):  # another app had it in the same second
                    continue
                raise
            self._recorder, self.path = recorder, path
            break
        self._forget_old()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._recorder is not None:
            self._recorder.__exit__(kind, error, traceback)

    def _forget_old(self) -> None:
        """Recordings of this panel alone: a file that a user put there has another name."""
        kept = sorted(path for path in self._folder.iterdir() if _OWN.fullmatch(path.name))
        for path in kept[:-KEPT]:
            path.unlink(missing_ok=True)
