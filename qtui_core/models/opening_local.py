"""Models on this machine: a folder, one file, a bare configuration."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qtui_core.errors import ModelError
from qtui_core.models.assemble import (
    FoundWeights,
    Progress,
    assemble,
    check_complete,
    find_weights,
    read_config,
)
from qtui_core.models.files.layout import (
    CONFIG,
    GGUF_SUFFIX,
    INDEX_SUFFIX,
    QUANT_CONFIG,
    SUFFIX,
    WeightFiles,
    choose_weights,
    refuse_file,
)
from qtui_core.models.files.links import followed
from qtui_core.models.files.local import LocalFile, read_header, read_text_file, unreadable
from qtui_core.models.quoting import listed, quoted
from qtui_core.models.source import ModelSource


def open_path(path: Path, name: str, progress: Progress | None) -> ModelSource:
    """The model at an existing path; `name` is what the user typed.

    Raises:
        ModelError: it cannot be opened.
    """
    # Not Path.is_dir, which raises where a link leads to what may not be looked at.
    if os.path.isdir(path):
        return open_folder(path, name, "folder", progress)
    lowered = path.name.lower()
    if lowered.endswith(INDEX_SUFFIX):
        return open_folder(path.parent, name, "folder", progress, index=path.name)
    if lowered.endswith(".json"):
        reason = f"{quoted(name)} is a configuration alone; it has no weights to read."
        return assemble(
            name=name,
            origin="config",
            location=path,
            config=read_config(path, _told_beside(path.parent, path)),
            weights=FoundWeights(missing=reason),
        )
    if lowered.endswith(GGUF_SUFFIX):
        from qtui_core.models.opening_gguf import open_gguf  # its types are many

        return open_gguf(path, name, progress)
    refusal = refuse_file(str(path))
    if refusal is not None:
        raise refusal
    return assemble(
        name=name,
        origin="file",
        location=path,
        config=config_in(path.parent, path) if os.path.isfile(path.parent / CONFIG) else None,
        weights=read_headers(FoundWeights((path.name,)), path.parent, progress, path),
    )


def open_folder(
    folder: Path, name: str, origin: str, progress: Progress | None, index: str | None = None
) -> ModelSource:
    """The model in a folder; a config.json without weights is a model without tensors.

    Raises:
        ModelError: there is neither, or what there is cannot be opened.
    """
    where = f"the folder {quoted(name)}"
    names = list_folder(folder)
    # An index that was named is the user's choice; installers may make links of the demo's files.
    own = folder / (index or CONFIG) if index or origin == "demo" else None
    config = config_in(folder, own) if CONFIG in names else None
    chosen = WeightFiles(index=index) if index else choose_weights(names, where, folder)
    if chosen.missing and config is None:
        raise ModelError(_nothing_to_open(chosen.missing, where, folder, names))
    weights = find_weights(chosen, lambda n: read_text_file(followed(folder, n, own)))
    check_complete(weights, lambda n: os.path.lexists(folder / n), where)
    weights = read_headers(weights, folder, progress, own)
    return assemble(name=name, origin=origin, location=folder, config=config, weights=weights)


def config_in(folder: Path, own: Path | None = None) -> dict[str, Any]:
    """The config.json of a folder, with what ModelOpt tells beside it; `own` is the file that the
    user named, if one was. Raises ModelError as `read_config`, and for a link that leads
    elsewhere."""
    return read_config(followed(folder, CONFIG, own), _told_beside(folder, own))


def _told_beside(folder: Path, own: Path | None) -> Path | None:
    there = os.path.lexists(folder / QUANT_CONFIG)
    return followed(folder, QUANT_CONFIG, own) if there else None


def read_headers(
    weights: FoundWeights, folder: Path, progress: Progress | None, chosen: Path | None = None
) -> FoundWeights:
    """The same weights with the headers and readers of their files, which are in a folder;
    `chosen` is the file that the user named, if one was.

    Raises:
        ModelError: a file cannot be read, is a link that leads elsewhere, or its header is not
            true of it.
    """
    files = {name: LocalFile(folder / name) for name in weights.names}
    headers = []
    for name in weights.names:
        headers.append(read_header(followed(folder, name, chosen), name))
        if progress:
            progress(len(headers), len(weights.names))
    return replace(weights, headers=tuple(headers), files=files)


def list_folder(folder: Path) -> list[str]:
    """Names in a folder, sorted. Raises ModelError when it cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise unreadable(folder, error) from error


def _nothing_to_open(reason: str, where: str, folder: Path, names: Sequence[str]) -> str:
    if not reason.startswith("There are no weights"):
        return reason
    for name in names[:200]:
        below = folder / name
        if _holds_weights(below):
            return f"{reason} Perhaps {quoted(below)} is meant?"
    held = f"it holds {listed(list(names))}" if names else "it is empty"
    return f"There is neither a {SUFFIX} file nor a {CONFIG} in {where}; {held}."


def _holds_weights(folder: Path) -> bool:
    try:
        return any(n.endswith(SUFFIX) for n in os.listdir(folder))
    except OSError:
        return False  # No folder, or one that may not be looked into: no hint comes from it.
