"""Recordings of the runs of this panel, of which the last ones are kept."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from qtui.tui.config import log_file
from qtui_core.errors import UsageError
from qtui_core.live.lines import Told
from qtui_core.live.recording import Recorder

#: The oldest goes first.
KEPT: Final = 20


def recordings() -> Path:
    """The folder of recordings, beside the log."""
    return log_file().with_name("runs")


class Keeper:
    """Records a run, in a `with` statement. A disk that takes nothing stops the recording and not
    the run; `complaint` then says so."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or recordings()
        self._recorder: Recorder | None = None
        self.path: Path | None = None
        self.complaint = ""

    def __enter__(self) -> Self:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._forget_old()
            self.path = self._unused()
            self._recorder = Recorder(self.path)
        except (OSError, UsageError) as error:
            self._give_up(error)
        return self

    def write(self, told: Told) -> None:
        """Adds a line, if there is a recording."""
        if self._recorder is not None:
            try:
                self._recorder.write(told)
            except OSError as error:
                self._give_up(error)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._recorder is not None:
            with suppress(OSError):
                self._recorder.__exit__(kind, error, traceback)

    def _give_up(self, error: Exception) -> None:
        self._recorder, self.path = None, None
        self.complaint = f"The run is not recorded: {error}"

    def _unused(self) -> Path:
        stem = f"run-{datetime.now():%Y%m%d-%H%M%S}"
        names = (f"{stem}.jsonl" if at == 1 else f"{stem}-{at}.jsonl" for at in count(1))
        return next(path for name in names if not (path := self._folder / name).exists())

    def _forget_old(self) -> None:
        kept = sorted(self._folder.glob("run-*.jsonl"))
        for path in kept[: max(0, len(kept) - KEPT + 1)]:
            path.unlink(missing_ok=True)
