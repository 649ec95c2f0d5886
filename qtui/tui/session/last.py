"""The session before this one: what the app begins with, and the file in which this one ends. The
first lines need it, so that Textual is not imported here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qtui.tui.config import Settings
from qtui.tui.panels import PANELS
from qtui.tui.state import (
    AppState,
    StateError,
    kept_model,
    read_state,
    state_file,
    still_there,
    write_state,
)


class LastSession:
    """The state of the app while it runs.

    Attributes:
        state: what is known now.
        first: whether there was no file: nobody used the app before.
        remark: a sentence about a file that was not used, or a model that is gone; "" for none.
        went_on: whether the model was that of the last session.
        last: the model of the last session; "" if none is known.
    """

    def __init__(self, file: Path | None = None) -> None:
        """Reads `file`; with None, nothing is read or kept."""
        self._file, self.remark, self.went_on = file, "", False
        found = None
        if file is not None:
            try:
                found = read_state(file)
            except StateError as error:
                self.remark = f"Where you were is not known: {file} is not used, as {error}."
                if error.newer:  # it says more to a later version
                    self._file = None
        self.first = file is not None and found is None and not self.remark
        self.state = self._kept = found or AppState()
        self.last = self.state.model

    @classmethod
    def of(cls, settings: Settings, *, goes_on: bool = True) -> LastSession:
        """The last session, unless the settings keep none. With `goes_on` false it stays the last:
        nothing of this one is kept."""
        found = cls(state_file() if settings.state else None)
        if not goes_on:
            found._file, found.first = None, False
        return found

    def model(self, named: str) -> str:
        """The model to open: the one that was named, else the last one, else the demo."""
        last = self.state.model
        if named or not last:
            return named or "demo"
        if still_there(last):
            self.went_on = True
            return last
        self.remark = f"{last}, which was open last, is gone. This is the demo."
        return "demo"

    def panel(self, settings: Settings, recording: Path | None = None) -> str:
        """The panel to begin with: that of a recording to play, else one that the configuration
        names, else the last one."""
        if recording is not None:
            return "train"
        known = {entry.id for entry in PANELS}
        named = settings.start_panel != Settings().start_panel
        return settings.start_panel if named or self.state.panel not in known else self.state.panel

    def theme(self, settings: Settings) -> str:
        """The theme to begin with: the chosen one, unless the configuration changed since."""
        chosen = self.state.theme if self.state.configured == settings.theme else ""
        return chosen or settings.theme

    def opened(self, model: str) -> None:
        """A model was opened. One that is not kept leaves no trace."""
        self.state = self.state.opened(kept_model(model))

    def themed(self, theme: str, settings: Settings) -> None:
        """A theme was chosen."""
        self.state = replace(self.state, theme=theme, configured=settings.theme)

    def keep(self) -> None:
        """Writes the state if it changed. Where it cannot be written, it is not kept."""
        if self._file is None or self.state == self._kept:
            return
        try:
            write_state(self.state, self._file)
        except (OSError, StateError) as error:
            import logging

            logging.getLogger("qtui.tui").info("%s is not written: %s", self._file, error)
            self._file = None
        self._kept = self.state
