"""From what a person types to an open model."""

from __future__ import annotations

import os
from pathlib import Path

from qtui_core.errors import ModelError
from qtui_core.extras import MissingLibrary
from qtui_core.models.assemble import Progress
from qtui_core.models.files.layout import CONFIG, GGUF_SUFFIX, SUFFIX, refuse_file
from qtui_core.models.files.local import unreadable
from qtui_core.models.opening_local import open_folder, open_path
from qtui_core.models.quoting import quoted
from qtui_core.models.source import ModelSource

DEMO = "demo"
DEMO_FOLDER = Path(__file__).parent / "demo"


def open_model(text: str | os.PathLike[str], *, progress: Progress | None = None) -> ModelSource:
    """Open a model by its headers; no values are read.

    Args:
        text: `demo`; the path of a folder, a safetensors or GGUF file or a config.json; or a
            hub id, `org/name` with an optional `@revision`. What exists on this machine is
            meant before a hub id; `./demo` is a folder of that name.
        progress: called as the headers of the model's files arrive.

    Raises:
        ModelError: there is no such model, it cannot be read or reached (nor asked for, without
            huggingface_hub), it is malformed, or it is stored in a way that is not safe to open.
    """
    name = os.fspath(text)
    if not name.strip() or "\0" in name:
        raise ModelError(f"{quoted(name)} names no model; give a path, a hub id or `demo`.")
    if text == DEMO:
        return _open_demo(progress)
    path = Path(name)
    if name.startswith("~"):
        path = Path(os.path.expanduser(name))
    try:
        os.lstat(path)
    except PermissionError as error:
        hidden = unreadable(path, error)  # it may be there, and may be a hub id all the same
    except (OSError, ValueError):
        hidden = None  # for any other error of the system, there is no such file
    else:
        return open_path(path, name, progress)
    if isinstance(text, str) and not _looks_like_path(name):
        # What is on this machine is opened without what the hub takes.
        from qtui_core.models.hub import Unknown, Unreachable, parse_hub_id
        from qtui_core.models.opening_hub import open_hub

        hub_id = parse_hub_id(name)
        if hub_id is not None:
            try:
                return open_hub(hub_id, progress)
            except (Unknown, Unreachable) as error:
                # It may have been meant as a path; then this is the line that helps.
                if hidden is not None:
                    raise ModelError(f"{error} On this machine, {hidden}") from error
                here = _nearest(path) or "no file or folder of that name either"
                raise ModelError(f"{error} On this machine there is {here}.") from error
            except MissingLibrary as error:
                near = _nearest(path)
                here = f"; there is {near}" if near else ""
                said = hidden or f"{quoted(name)} is not on this machine{here}."
                raise ModelError(f"{said} {error}") from error
    raise hidden or ModelError(_no_such_path(name, path))


def _open_demo(progress: Progress | None) -> ModelSource:
    if not (DEMO_FOLDER / CONFIG).is_file():
        raise ModelError("The demo model is missing from this installation; install qtui again.")
    return open_folder(DEMO_FOLDER, DEMO, DEMO, progress)


def _looks_like_path(name: str) -> bool:
    return (
        name.startswith((".", "/", "~"))
        or name.endswith("/")
        or "\\" in name
        or name.lower().endswith((SUFFIX, GGUF_SUFFIX, ".json"))
        or refuse_file(name) is not None
    )


def _no_such_path(name: str, path: Path) -> str:
    if hint := _nearest(path):
        return f"There is no {quoted(name)}; there is {hint}."
    if "://" in name:
        return f"{quoted(name)} is an address; give the hub id alone, as in `org/name`."
    return f"There is no file or folder {quoted(name)}, and it is not a hub id (`org/name`)."


def _nearest(path: Path) -> str:
    """Names beside a missing path that resemble it, quoted; empty when none do."""
    try:
        names = os.listdir(path.parent)
    except (OSError, ValueError):  # it has no such folder, or no name that a file can have
        return ""  # No folder to look in is no failure: the hint is left out.
    from difflib import get_close_matches  # only a name that is not found pays for it

    close = get_close_matches(path.name, names, n=2, cutoff=0.7)
    return " and ".join(quoted(path.parent / n) for n in close)
