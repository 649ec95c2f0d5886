"""From what a person types to an open model, or to an open adapter of peft."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.extras import MissingLibrary
from qtui_core.job import IDLE, Job
from qtui_core.models.files.layout import (
    CONFIG,
    GGUF_SUFFIX,
    INDEX_SUFFIX,
    NO_WEIGHTS,
    PICKLE_SUFFIXES,
    QUANT_CONFIG,
    SUFFIX,
    WeightFiles,
    choose_weights,
    merge_headers,
    refusal,
)
from qtui_core.models.files.local import LocalFile, unreadable
from qtui_core.models.places import Folder, open_at, read_config
from qtui_core.models.quoting import listed, printable, quoted
from qtui_core.models.source import ModelSource

DEMO = "demo"
DEMO_FOLDER = Path(__file__).parent / "demo"
#: The names that peft gives to the files of an adapter (`peft.utils.constants`, peft 0.21).
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
#: The longest weights of an adapter that are downloaded, bytes.
MOST_ADAPTER_BYTES = 32 << 30


def open_model(text: str | os.PathLike[str], *, job: Job = IDLE) -> ModelSource:
    """Open a model by its headers; no values are read.

    Args:
        text: `demo`; the path of a folder, a safetensors or GGUF file or a config.json; or a
            hub id, `org/name` with an optional `@revision`. What exists on this machine is
            meant before a hub id; `./demo` is a folder of that name.
        job: hears of the model's files as their headers arrive.

    Raises:
        ModelError: there is no such model, it cannot be read or reached (nor asked for, without
            huggingface_hub), it is malformed, or it is stored in a way that is not safe to open.
        Cancelled: as `job` says.
    """
    name = os.fspath(text)
    if not name.strip() or "\0" in name:
        raise ModelError(f"{quoted(name)} names no model; give a path, a hub id or `demo`.")
    if text == DEMO:
        # Installers may make links of the demo's files.
        return _open_folder(Folder(DEMO_FOLDER, DEMO_FOLDER / CONFIG), DEMO, DEMO, job)
    path = Path(os.path.expanduser(name)) if name.startswith("~") else Path(name)
    hidden = None
    try:
        os.lstat(path)
    except PermissionError as error:
        hidden = unreadable(path, error)  # it may be there, and may be a hub id all the same
    except (OSError, ValueError):
        pass  # for any other error of the system, there is no such file
    else:
        return _open_path(path, name, job)
    if isinstance(text, str) and not _looks_like_path(name):
        # What is on this machine is opened without what the hub takes.
        from qtui_core.models.hub import Unknown, Unreachable, open_hub, parse_hub_id

        if (hub_id := parse_hub_id(name)) is not None:
            try:
                return open_hub(hub_id, job)
            except (Unknown, Unreachable, MissingLibrary) as error:
                # It may have been meant as a path; then this is the line that helps.
                here = f" there is {_nearest(path) or 'no file or folder of that name either'}."
                said = f"{error} On this machine{f', {hidden}' if hidden else here}"
                raise ModelError(said) from error
    raise hidden or ModelError(_no_such_path(name, path))


def _looks_like_path(name: str) -> bool:
    return (
        name.startswith((".", "/", "~"))
        or name.endswith("/")
        or "\\" in name
        or name.lower().endswith((SUFFIX, GGUF_SUFFIX, ".json", *PICKLE_SUFFIXES))
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
        return ""
    from difflib import get_close_matches  # only a name that is not found pays for it

    close = get_close_matches(path.name, names, n=2, cutoff=0.7)
    return " and ".join(quoted(path.parent / n) for n in close)


def _open_path(path: Path, name: str, job: Job) -> ModelSource:
    """The model at an existing path; `name` is what the user typed."""
    # Not Path.is_dir, which raises where a link leads to what may not be looked at.
    if os.path.isdir(path):
        return _open_folder(Folder(path), name, "folder", job)
    lowered = path.name.lower()
    place = Folder(path.parent, path)
    if lowered.endswith(INDEX_SUFFIX):
        return _open_folder(place, name, "folder", job, WeightFiles(index=path.name))
    beside = [file for file in (QUANT_CONFIG,) if place.has(file)]
    if lowered.endswith(".json"):
        reason = f"{quoted(name)} is a configuration alone; it has no weights to read."
        config = read_config(place, [path.name, *beside], path.name)
        return open_at(place, WeightFiles(missing=reason), config, name, "config", path)
    if lowered.endswith(GGUF_SUFFIX):
        return _open_gguf(path, name, job)
    if lowered.endswith(PICKLE_SUFFIXES):
        raise ModelError(refusal(f"{quoted(path)} is a pickle: loading it runs", [str(path)]))
    beside += [CONFIG] * os.path.isfile(path.parent / CONFIG)
    config = read_config(place, beside)
    return open_at(place, WeightFiles((path.name,)), config, name, "file", path, job=job)


def _open_folder(
    place: Folder, name: str, origin: str, job: Job, weights: WeightFiles | None = None
) -> ModelSource:
    """The model in a folder; a config.json without weights is a model without tensors."""
    where, names = f"the folder {quoted(name)}", place.names()
    config = read_config(place, names)
    weights = weights or choose_weights(names, where, place.path)
    if weights.missing and config is None:
        held = f"it holds {listed(names)}" if names else "it is empty"
        neither = f"There is neither a {SUFFIX} file nor a {CONFIG} in {where}; {held}."
        raise ModelError(neither if weights.missing.startswith(NO_WEIGHTS) else weights.missing)
    return open_at(place, weights, config, name, origin, place.path, where=where, job=job)


def _open_gguf(path: Path, name: str, job: Job) -> ModelSource:
    """The model in a GGUF file, with its other files where it was split."""
    from qtui_core.models.files import gguf  # its types are many

    paths = gguf.split_files(path)
    files = {part.name: LocalFile(part) for part in paths}
    headers = []
    for part in paths:
        headers.append(gguf.read_gguf_header(part, part.name))
        job.at(len(headers), len(paths))
    tensors, metadata = merge_headers(headers)
    return ModelSource(
        id=printable(name),
        origin="file",
        location=printable(str(path)),
        config=gguf.config_of(metadata, tensors) or None,
        tensors=tensors,
        quantization=gguf.describe_gguf(tensors),
        metadata={k: str(v) for k, v in metadata.items() if isinstance(v, str | int | float)},
        missing_weights=None if tensors else f"{quoted(name)} holds metadata and no tensors.",
        files=files,
    )


@dataclass(frozen=True)
class AdapterSource:
    """An adapter whose headers were read and whose values were not.

    Attributes:
        config: adapter_config.json.
        weights: its tensors, under the names that peft stores.
    """

    config: Mapping[str, Any]
    weights: ModelSource


def open_adapter(text: str) -> AdapterSource:
    """Opens an adapter by its headers; no values are read.

    Args:
        text: the path of a folder with adapter_config.json and adapter_model.safetensors, or of
            one of the two files; or a hub id, `org/name` with an optional `@revision`. What exists
            on this machine is meant before a hub id.

    Raises:
        ModelError: there is no such adapter, it cannot be read or reached, it is malformed, or it
            is stored as a pickle or in several files.
    """
    if not text.strip() or "\0" in text:
        raise ModelError(f"{quoted(text)} names no adapter; give a path or a hub id.")
    path = Path(os.path.expanduser(text))
    try:
        os.lstat(path)
    except PermissionError as error:
        raise unreadable(path, error) from error
    except (OSError, ValueError):
        return _adapter_on_hub(text)  # for any other error of the system, there is no such file
    place = Folder(path) if os.path.isdir(path) else Folder(path.parent, path)
    if place.path != path and path.name not in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        raise ModelError(
            f"{quoted(text)} is no adapter of peft: give the folder with {ADAPTER_CONFIG} and "
            f"{ADAPTER_WEIGHTS}."
        )
    _check_adapter(place.names(), f"the folder {quoted(text)}", place.path)
    return _read_adapter(place, text, "folder")


def _adapter_on_hub(text: str) -> AdapterSource:
    from qtui_core.models import hub

    hub_id = hub.parse_hub_id(text)
    if hub_id is None:
        raise ModelError(f"There is no folder {quoted(text)}, and it is not a hub id (`org/name`).")
    try:
        listing = hub.list_files(hub_id)
    except ModelError as error:
        snapshot = hub.cached_file(hub_id, ADAPTER_CONFIG, hub_id.revision or "main")
        if snapshot is not None and (snapshot.parent / ADAPTER_WEIGHTS).is_file():
            return _read_adapter(Folder(snapshot.parent), str(hub_id), "hub")
        if isinstance(error, hub.Unknown | hub.Unreachable):
            raise ModelError(f"{error} On this machine there is no folder of that name.") from error
        raise
    _check_adapter(listing.files, f"the repository {quoted(hub_id)}", None)
    # All of its values are needed, so the file is downloaded and not read by range.
    hub.fetch(hub_id, ADAPTER_WEIGHTS, listing, MOST_ADAPTER_BYTES)
    place = Folder(hub.fetch(hub_id, ADAPTER_CONFIG, listing).parent)
    return _read_adapter(place, str(hub_id), "hub")


def _read_adapter(place: Folder, name: str, origin: str) -> AdapterSource:
    weights = open_at(place, WeightFiles((ADAPTER_WEIGHTS,)), None, name, origin, place.path)
    config = read_config(place, (ADAPTER_CONFIG,), ADAPTER_CONFIG)
    assert config is not None
    return AdapterSource(config, weights)


def _check_adapter(names: Collection[str], where: str, folder: Path | None) -> None:
    """Raises ModelError unless the files of a folder or repository are those of an adapter."""
    subject = f"{where[0].upper()}{where[1:]}"
    top = sorted(name for name in names if "/" not in name)
    if ADAPTER_CONFIG not in top:
        whole = "; it is a whole model, which --against compares" if CONFIG in top else ""
        held = f"it holds {listed(top)}" if top else "it is empty"
        raise ModelError(
            f"{subject} is no adapter of peft: it has no {ADAPTER_CONFIG} ({held}){whole}."
        )
    if ADAPTER_WEIGHTS in top:
        return
    pickles = [name for name in top if name.lower().endswith(PICKLE_SUFFIXES)]
    if pickles:
        paths = [str(folder / name) if folder else name for name in pickles]
        raise ModelError(refusal(f"The adapter in {where} is a pickle, which may run", paths))
    raise ModelError(
        f"{subject} has no {ADAPTER_WEIGHTS}; load the adapter with peft and save it as that."
    )
