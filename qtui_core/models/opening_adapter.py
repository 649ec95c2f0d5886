"""Adapters of peft: the configuration and the weights of a LoRA, from a folder or a hub."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.models.assemble import FoundWeights, assemble, read_config
from qtui_core.models.files.layout import CONFIG, refuse_file
from qtui_core.models.files.links import followed
from qtui_core.models.files.local import unreadable
from qtui_core.models.files.pickles import PICKLE_SUFFIXES, convert_command
from qtui_core.models.opening_local import list_folder, read_headers
from qtui_core.models.quoting import listed, quoted
from qtui_core.models.source import ModelSource

#: The names that peft gives to the files of an adapter (`peft.utils.constants`, peft 0.21).
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_STEM = "adapter_model"
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
    if os.path.isdir(path):
        return _open_folder(path, text)
    if path.name not in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        raise refuse_file(text) or ModelError(
            f"{quoted(text)} is no adapter of peft: give the folder with {ADAPTER_CONFIG} and "
            f"{ADAPTER_WEIGHTS}."
        )
    return _open_folder(path.parent, text, path)


def _open_folder(folder: Path, name: str, chosen: Path | None = None) -> AdapterSource:
    _check(list_folder(folder), f"the folder {quoted(name)}", folder)
    return _read(folder, folder / ADAPTER_CONFIG, name, "folder", chosen)


def _open_remote(name: str) -> AdapterSource:
    # What is on this machine is opened without what the hub takes.
    from qtui_core.models import hub

    hub_id = None if name.startswith((".", "/", "~")) else hub.parse_hub_id(name)
    if hub_id is None:
        raise ModelError(
            f"There is no folder {quoted(name)}, and it is not a hub id (`org/name`): give the "
            f"folder of a peft adapter."
        )
    try:
        listing = hub.list_files(hub_id)
    except ModelError as error:
        # What was fetched of it earlier, when the hub does not answer.
        names = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
        kept = [hub.cached_file(hub_id, name, hub_id.revision or "main") for name in names]
        if kept[0] is not None and kept[1] is not None:
            return _read(kept[1].parent, kept[0], str(hub_id), "hub")
        if isinstance(error, hub.Unknown | hub.Unreachable):
            raise ModelError(f"{error} On this machine there is no folder of that name.") from error
        raise
    _check(list(listing.files), f"the repository {quoted(hub_id)}", None)
    # All of its values are needed, so the file is downloaded and not read by range.
    weights = hub.fetch(hub_id, ADAPTER_WEIGHTS, listing, MOST_ADAPTER_BYTES)
    config = hub.fetch(hub_id, ADAPTER_CONFIG, listing)
    return _read(weights.parent, config, str(hub_id), "hub")


def _read(
    folder: Path, config: Path, name: str, origin: str, chosen: Path | None = None
) -> AdapterSource:
    weights = read_headers(FoundWeights((ADAPTER_WEIGHTS,)), folder, None, chosen)
    source = assemble(name=name, origin=origin, location=folder, config=None, weights=weights)
    config = followed(config.parent, config.name, chosen)
    return AdapterSource(read_config(config), source)


def _check(names: Sequence[str], where: str, folder: Path | None) -> None:
    """Raises ModelError unless the files of a folder or repository are those of an adapter."""
    subject = f"{where[0].upper()}{where[1:]}"
    top = [name for name in names if "/" not in name]
    if ADAPTER_CONFIG not in top:
        whole = "; it is a whole model, which --against compares" if CONFIG in top else ""
        held = f"it holds {listed(sorted(top))}" if top else "it is empty"
        raise ModelError(
            f"{subject} is no adapter of peft: it has no {ADAPTER_CONFIG} ({held}){whole}."
        )
    if ADAPTER_WEIGHTS in top:
        return
    parts = [n for n in top if n.startswith(_STEM)]
    pickles = [n for n in parts if n.lower().endswith(PICKLE_SUFFIXES)]
    if pickles:
        paths = [str(folder / n) if folder else n for n in pickles]
        raise ModelError(
            f"The adapter in {where} is a pickle ({listed(pickles)}), which may run code when it "
            f"is loaded, so qtui does not open it. Convert it once, where you trust it: "
            f"{convert_command(paths)}"
        )
    if parts:
        raise ModelError(
            f"The adapter in {where} is stored in several files ({listed(parts)}), which qtui "
            f"does not read: load it with peft and save it as one {ADAPTER_WEIGHTS}."
        )
    raise ModelError(f"{subject} has no {ADAPTER_WEIGHTS}: the adapter's weights are missing.")
