"""Writes the recording of a run or an experiment while it runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Generic, Self, TypeVar

from qtui_core.errors import QtuiError
from qtui_core.files import Target
from qtui_core.models.quoting import quoted
from qtui_core.recorded_lines import Recorder

EventT = TypeVar("EventT")


class Keeper(Generic[EventT]):
    """A context manager that writes the messages of a run to a new file of a folder. If the disk is
    full, the recording ends and the run continues.

    Args:
        folder: made if it does not exist.
        stem: how the file's name begins; its first word is the kind of recording.
        most: how many recordings of this kind the folder keeps; the oldest are deleted.
        to_line: turns a message into a line of the file.
        first: the class of the message that begins a recording; earlier messages are not written.

    Attributes:
        path: the recording; None before it begins, and if it cannot be written.
        complaint: a sentence if the recording cannot be written, or ends before the run; else "".
    """

    def __init__(
        self,
        folder: Path,
        stem: str,
        most: int,
        to_line: Callable[[EventT], str],
        first: type[EventT],
    ) -> None:
        self._folder, self._stem, self._most = folder, stem, most
        self._to_line, self._first = to_line, first
        self._recorder: Recorder[EventT] | None = None
        self.path: Path | None = None
        self.complaint = ""

    def __enter__(self) -> Self:
        return self

    def write(self, event: EventT) -> None:
        """Writes a message, unless the recording has failed or not begun."""
        if self.complaint:
            return
        try:
            if self._recorder is not None:
                self._recorder.write(event)
            elif isinstance(event, self._first):
                self._begin(event)
        except (OSError, QtuiError) as error:
            why = (error.strerror if isinstance(error, OSError) else "") or f"{error}".rstrip(".")
            if isinstance(error, FileNotFoundError):
                self.path = None
            if self.path is None:
                folder = quoted(self._folder)
                self.complaint = f"The run is not recorded: {why} (in the folder {folder})."
            else:
                self.complaint = f"The recording is cut off: {why}."

    def _begin(self, event: EventT) -> None:
        """Makes the file with its first line, then deletes the oldest recordings."""
        self._folder.mkdir(parents=True, exist_ok=True)
        stem = f"{self._stem}-{datetime.now():%Y%m%d-%H%M%S}"
        names = (f"{stem}.jsonl" if at == 1 else f"{stem}-{at}.jsonl" for at in count(1))
        for path in map(self._folder.joinpath, names):
            if path.exists():
                continue
            recorder = Recorder(Target(str(path), path), self._to_line)
            try:
                recorder.write(event)
            except OSError as error:
                recorder.__exit__(type(error), error, None)
                if isinstance(error, FileExistsError):  # another app made it in the same second
                    continue
                raise
            self._recorder, self.path = recorder, path
            break
        self._forget_old()

    def _forget_old(self) -> None:
        """Deletes only recordings of this kind, by their names: users may put other files there."""
        kind = self._stem.partition("-")[0]
        own = re.compile(rf"{kind}(-[a-z0-9-]+)?-(\d{{8}}-\d{{6}}(-\d+)?)\.jsonl")
        found = ((own.fullmatch(path.name), path) for path in self._folder.iterdir())
        # The clock may have been put back, so that the file of this run looks older than others.
        kept = sorted((path == self.path, match[2], path) for match, path in found if match)
        for _, _, path in kept[: -self._most]:
            path.unlink(missing_ok=True)

    def __exit__(self, *error: object) -> None:
        if self._recorder is not None:
            self._recorder.__exit__(*error)
