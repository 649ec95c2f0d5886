"""Adapters of peft: the configuration and the weights of a LoRA, from a folder or a hub."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.models.files.layout import CONFIG, WeightFiles
from qtui_core.models.files.local import unreadable
from qtui_core.models.files.pickles import PICKLE_SUFFIXES, refusal
from qtui_core.models.places import Folder, open_at, read_config
from qtui_core.models.quoting import listed, quoted
from qtui_core.models.source import ModelSource

#: The names that peft gives to the files of an adapter (`peft.utils.constants`, peft 0.21).
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
#: The longest weights of an adapter that are downloaded, bytes.
MOST_ADAPTER_BYTES = 32 << 30


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
        return _open_remote(text)  # for any other error of the system, there is no such file
    place = Folder(path) if os.path.isdir(path) else Folder(path.parent, path)
    if place.path != path and path.name not in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        raise ModelError(
            f"{quoted(text)} is no adapter of peft: give the folder with {ADAPTER_CONFIG} and "
            f"{ADAPTER_WEIGHTS}."
        )
    _check(place.names(), f"the folder {quoted(text)}", place.path)
    return _read(place, text, "folder")


def _open_remote(text: str) -> AdapterSource:
    from qtui_core.models import hub

    hub_id = hub.parse_hub_id(text)
    if hub_id is None:
        raise ModelError(f"There is no folder {quoted(text)}, and it is not a hub id (`org/name`).")
    try:
        listing = hub.list_files(hub_id)
    except ModelError as error:
        snapshot = hub.cached_file(hub_id, ADAPTER_CONFIG, hub_id.revision or "main")
        if snapshot is not None and (snapshot.parent / ADAPTER_WEIGHTS).is_file():
            return _read(Folder(snapshot.parent), str(hub_id), "hub")
        if isinstance(error, hub.Unknown | hub.Unreachable):
            raise ModelError(f"{error} On this machine there is no folder of that name.") from error
        raise
    _check(listing.files, f"the repository {quoted(hub_id)}", None)
    # All of its values are needed, so the file is downloaded and not read by range.
    hub.fetch(hub_id, ADAPTER_WEIGHTS, listing, MOST_ADAPTER_BYTES)
    place = Folder(hub.fetch(hub_id, ADAPTER_CONFIG, listing).parent)
    return _read(place, str(hub_id), "hub")


def _read(place: Folder, name: str, origin: str) -> AdapterSource:
    weights = open_at(place, WeightFiles((ADAPTER_WEIGHTS,)), None, name, origin, place.path)
    config = read_config(place, (ADAPTER_CONFIG,), ADAPTER_CONFIG)
    assert config is not None
    return AdapterSource(config, weights)


def _check(names: Collection[str], where: str, folder: Path | None) -> None:
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
