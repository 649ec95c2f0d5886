"""From what a person types to an open model."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from qtui_core.errors import ModelError
from qtui_core.extras import MissingLibrary
from qtui_core.job import IDLE, Job
from qtui_core.models.files.jsontext import load_object
from qtui_core.models.files.layout import (
    CONFIG,
    GGUF_SUFFIX,
    INDEX_SUFFIX,
    NO_WEIGHTS,
    QUANT_CONFIG,
    SUFFIX,
    WeightFiles,
    choose_weights,
    merge_headers,
    read_index,
)
from qtui_core.models.files.links import followed
from qtui_core.models.files.local import LocalFile, read_header, read_text_file, unreadable
from qtui_core.models.files.pickles import PICKLE_SUFFIXES, refusal
from qtui_core.models.files.safetensors import Header
from qtui_core.models.quoting import listed, printable, quoted
from qtui_core.models.recognise import quantization_config, recognise, with_roles
from qtui_core.models.source import ModelSource, TensorFile
from qtui_core.models.tensors import DESCRIBED_IN, with_stacks

DEMO = "demo"
DEMO_FOLDER = Path(__file__).parent / "demo"

Headers = tuple[Sequence[Header], Mapping[str, TensorFile]]


class Place(Protocol):
    """Where the files of a model are; they have the names that a listing gives."""

    def file(self, name: str) -> Path:
        """A small file, on this machine. Raises ModelError if it cannot be had, or is a link that
        leads elsewhere."""

    def has(self, name: str) -> bool:
        """Whether there is such a file."""

    def read_headers(self, names: Sequence[str], job: Job) -> Headers:
        """The headers of safetensors files, in order, and by name what reads their tensors. Raises
        ModelError if one cannot be read, or is not true of its file."""


class Folder:
    """A folder of this machine. `own` is the file that the user named, if one was: where it leads
    is the user's choice, as `followed` has it."""

    def __init__(self, path: Path, own: Path | None = None) -> None:
        self.path = path
        self._own = own

    def names(self) -> list[str]:
        """Names in the folder, sorted. Raises ModelError when it cannot be listed."""
        try:
            return sorted(os.listdir(self.path))
        except OSError as error:
            raise unreadable(self.path, error) from error

    def file(self, name: str) -> Path:
        return followed(self.path, name, self._own)

    def has(self, name: str) -> bool:
        return os.path.lexists(self.path / name)

    def read_headers(self, names: Sequence[str], job: Job) -> Headers:
        files = {name: LocalFile(self.path / name) for name in names}
        headers = []
        for name in names:
            headers.append(read_header(self.file(name), name))
            job.at(len(headers), len(names))
        return headers, files


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
        from qtui_core.models.hub import Unknown, Unreachable, parse_hub_id
        from qtui_core.models.opening_hub import open_hub

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


def read_config(place: Place, names: Collection[str], name: str = CONFIG) -> dict[str, Any] | None:
    """The config.json of a model, or None if it is not among `names`. A key given twice counts as
    the last one, as transformers reads it. The settings of a hf_quant_config.json beside it are put
    where config.json would have them, if that does not tell a quantization itself.

    Raises:
        ModelError: one of them cannot be read, or is no JSON object.
    """
    if name not in names:
        return None
    config, beside = (
        _object(place.file(file)) if file in names else {} for file in (name, QUANT_CONFIG)
    )
    config.pop(DESCRIBED_IN, None)  # which only what is made of another file has
    settings = beside.get("quantization")
    if isinstance(settings, dict) and settings and quantization_config(config) is None:
        config["quantization_config"] = {"quant_method": "modelopt", **settings}
    return config


def _object(file: Path) -> dict[str, Any]:
    what = f"The configuration {quoted(file)}"
    return load_object(read_text_file(file), what, unique=False)


def named_files(
    place: Place, weights: WeightFiles
) -> tuple[Sequence[str], Mapping[str, str] | None]:
    """The files of a model and, where an index names them, its weight map: tensor -> file. Raises
    ModelError for an index that cannot be read, or is not one."""
    if weights.index is None:
        return weights.files, None
    weight_map = read_index(read_text_file(place.file(weights.index)), weights.index)
    return sorted(set(weight_map.values())), weight_map


def open_at(
    place: Place,
    weights: WeightFiles,
    config: Mapping[str, Any] | None,
    name: str,
    origin: str,
    location: Path | str,
    *,
    where: str = "",
    commit: str | None = None,
    job: Job = IDLE,
) -> ModelSource:
    """The model that these files make up. `where` is what they are the contents of, for messages:
    "the folder 'x'".

    Raises:
        ModelError: a file cannot be read or is missing, or the files contradict each other or
            their index.
    """
    names, weight_map = named_files(place, weights)
    if weight_map and (absent := [file for file in names if not place.has(file)]):
        raise ModelError(
            f"The index {quoted(weights.index)} names {len(names):,} "
            f"shard{'s' if len(names) > 1 else ''}; missing from {where}: {listed(absent)}."
        )
    headers, files = place.read_headers(names, job)
    tensors, metadata = merge_headers(headers)
    for tensor, file in (weight_map or {}).items():
        if tensor not in tensors or tensors[tensor].file != file:
            raise ModelError(
                f"The index {quoted(weights.index)} says tensor {quoted(tensor)} is in "
                f"{quoted(file)}, but it is not."
            )
    tensors = with_stacks(tensors, config)
    quantization = recognise(config, tensors)
    return ModelSource(
        id=printable(name),
        origin=origin,
        location=printable(str(location)),
        config=config,
        tensors=with_roles(tensors, quantization),
        quantization=quantization,
        metadata=metadata,
        commit=commit,
        missing_weights=weights.missing,
        files=files,
    )
