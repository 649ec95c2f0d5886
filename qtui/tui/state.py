"""What the app keeps from one session to the next: the panel, the theme, the models that were open.

One small JSON file, `state.json` in the user's state folder (on Linux `$XDG_STATE_HOME/qtui`, else
`~/.local/state/qtui`). It is read before the first lines of the app, so only what that needs is
imported here. `state = false` in the configuration, or QTUI_STATE=0, keeps nothing and reads
nothing.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from qtui.tui.config import Settings
from qtui.tui.panels import PANELS
from qtui_core.dataclass import dataclass
from qtui_core.errors import QtuiError

#: What the file says its form is. A file of a later version is neither read nor replaced.
VERSION: Final = 1
#: How many models are remembered.
RECENTS: Final = 20
#: Bytes of a file that is read: ten times what 20 long paths take.
_MOST_BYTES: Final = 1 << 16
#: Characters of any text in it; the longest path that Linux takes.
_LONGEST: Final = 4096
_HUB_NAME: Final = re.compile(r"\w[\w.-]*(/[\w.-]+)?(@[\w./-]+)?", re.ASCII)
#: A token of the hub, which somebody may have typed in place of a model.
_TOKEN: Final = re.compile(r"hf_[A-Za-z0-9]{16}|api_org_[A-Za-z0-9]{16}")
#: An address, `host:path` as scp has it, a share of Windows, a remote that the desktop mounts.
_REMOTE: Final = re.compile(r".*://|[^/\\]{2,}:|//|\\\\|.*/gvfs/")


class StateError(QtuiError):
    """The file cannot be used; `newer` if a later qtui wrote it, whose file it stays."""

    def __init__(self, reason: str, *, newer: bool = False) -> None:
        super().__init__(reason)
        self.newer = newer


@dataclass(frozen=True)
class AppState:
    """Where the user was.

    Attributes:
        panel: the id of the panel; "" if none is known.
        theme: the theme that was chosen in the palette; "" if none was.
        configured: the theme of the configuration at that time. Another one there is newer.
        model: the model that was open, as `kept_model` has it; "" if it is not kept.
        recents: models that were open, the last one first.
    """

    panel: str = ""
    theme: str = ""
    configured: str = ""
    model: str = ""
    recents: tuple[str, ...] = ()

    def opened(self, model: str) -> AppState:
        """The state after a model was opened; "" for one that is not kept."""
        recents = (model, *self.recents) if model else self.recents
        return replace(self, model=model, recents=_once(recents))

    def joined(self, other: AppState) -> AppState:
        """This state, with the recent models of another app after its own."""
        return replace(self, recents=_once((*self.recents, *other.recents)))


def recent_models(state: AppState) -> tuple[str, ...]:
    """The models that were open, the last one first, without files that are gone."""
    return tuple(model for model in state.recents if still_there(model))


def still_there(model: str) -> bool:
    """Whether a kept model exists, as far as this machine knows: a hub name may."""
    return not os.path.isabs(model) or os.path.lexists(model)


def kept_model(model: str) -> str:
    """The model as it is kept: a local path, whole, or the name on the hub. "" for anything else:
    an address, the path of a remote, what looks like a token."""
    if not 0 < len(model) <= _LONGEST or not model.isprintable() or _TOKEN.search(model):
        return ""
    if _REMOTE.match(model) and not re.match(r"[A-Za-z]:[\\/]", model):
        return ""
    path = os.path.abspath(os.path.expanduser(model))
    if model != "demo" and os.path.lexists(path):
        return "" if _REMOTE.match(path) and os.name == "posix" else path
    return model if _HUB_NAME.fullmatch(model) or os.path.isabs(model) else ""


def state_file(environment: Mapping[str, str] | None = None) -> Path:
    """The file; it need not exist."""
    if sys.platform in ("win32", "darwin"):
        from platformdirs import user_state_path

        return user_state_path("qtui", appauthor=False) / "state.json"
    env = os.environ if environment is None else environment
    named = env.get("XDG_STATE_HOME", "")
    # A relative folder is invalid by the specification, and ignored.
    folder = Path(named) if os.path.isabs(named) else Path.home() / ".local" / "state"
    return folder / "qtui" / "state.json"


def read_state(path: Path) -> AppState | None:
    """The state in a file; None if there is no file. Raises StateError, never anything else, and
    waits for nothing."""
    try:
        # Without O_NONBLOCK a pipe would have to be opened by somebody else, too.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise StateError(f"it cannot be read ({getattr(error, 'strerror', error)})") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StateError("it is no file")
        text = os.read(descriptor, _MOST_BYTES + 1)
    except OSError as error:
        raise StateError(f"it cannot be read ({error.strerror})") from None
    finally:
        os.close(descriptor)
    if len(text) > _MOST_BYTES:
        raise StateError("it is larger than anything that qtui keeps")
    return _state_of(text)


def _state_of(text: bytes) -> AppState:
    import json

    try:
        found = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise StateError("it is not JSON that qtui wrote") from None
    version = found.get("version") if isinstance(found, dict) else None
    if type(version) is not int or version < 1:
        raise StateError("it is not JSON that qtui wrote")
    if version > VERSION:
        raise StateError("a later version of qtui wrote it", newer=True)
    read: dict[str, Any] = {}
    for name, fits in _FITS.items():
        if name in found:
            if not fits(found[name]):
                raise StateError(f"its {name} is none")
            read[name] = found[name]
    recents = (model for model in read.get("recents", ()) if kept_model(model))
    model = read.get("model", "")
    return AppState(**{**read, "recents": _once(recents), "model": kept_model(model) and model})


def write_state(state: AppState, path: Path) -> None:
    """Replaces the file at once, for this user alone to read. The recent models of another app that
    wrote it meanwhile stay. Raises OSError, and StateError for a file that is to stay."""
    import json
    import tempfile

    path = Path(os.path.realpath(path))
    if os.path.lexists(path) and not path.is_file():
        raise StateError("it is no file")
    try:
        state = state.joined(read_state(path) or AppState())
    except StateError as error:
        if error.newer:
            raise
    plain = {each.name: getattr(state, each.name) for each in fields(state)}
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, draft = tempfile.mkstemp(prefix=".state-", dir=path.parent)  # its mode is 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"version": VERSION, **plain}, file, indent=1, allow_nan=False)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise


def _once(models: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(models))[:RECENTS]


def _no_number(_: str) -> float:
    raise ValueError("JSON has no NaN")


def _text(found: Any) -> bool:
    return isinstance(found, str) and len(found) <= _LONGEST and (not found or found.isprintable())


def _texts(found: Any) -> bool:
    return isinstance(found, list) and all(map(_text, found))


_FITS: Final = {
    **dict.fromkeys(("panel", "theme", "configured", "model"), _text),
    "recents": _texts,
}


class LastSession:
    """The state of the app while it runs.

    Attributes:
        state: what is known now.
        remark: a sentence about a file that was not used, or a model that is gone; "" for none.
        went_on: whether the model was that of the last session.
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
        self.state = self._kept = found or AppState()

    @classmethod
    def of(cls, settings: Settings, *, goes_on: bool = True) -> LastSession:
        """The last session, unless the settings keep none. With `goes_on` false it stays the last:
        nothing of this one is kept."""
        found = cls(state_file() if settings.state else None)
        if not goes_on:
            found._file = None
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

    def keep(self, panel: str) -> None:
        """Writes the state, with the panel that is shown, if it changed. Where that is impossible
        it is not kept."""
        self.state = replace(self.state, panel=panel)
        if self._file is None or self.state == self._kept:
            return
        try:
            write_state(self.state, self._file)
        except (OSError, StateError) as error:
            import logging

            logging.getLogger("qtui.tui").info("%s is not written: %s", self._file, error)
            self._file = None
        self._kept = self.state
