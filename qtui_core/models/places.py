"""Where the files of a model are, and the model that they make up."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from qtui_core.errors import ModelError
from qtui_core.job import IDLE, Job
from qtui_core.models.files.layout import (
    CONFIG,
    QUANT_CONFIG,
    WeightFiles,
    merge_headers,
    read_index,
)
from qtui_core.models.files.local import (
    LocalFile,
    followed,
    load_object,
    read_text_file,
    unreadable,
)
from qtui_core.models.files.safetensors import Header, read_header
from qtui_core.models.quoting import listed, printable, quoted
from qtui_core.models.recognise import quantization_config, recognise, with_roles
from qtui_core.models.source import ModelSource, TensorFile
from qtui_core.models.tensors import DESCRIBED_IN, with_stacks

Headers = tuple[Sequence[Header], Mapping[str, TensorFile]]


class ModelPlace(Protocol):
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


def read_config(
    place: ModelPlace, names: Collection[str], name: str = CONFIG
) -> dict[str, Any] | None:
    """The config.json of a model, or None if it is not among `names`. A key given twice counts as
    the last one, as transformers reads it. The settings of a hf_quant_config.json beside it are put
    where config.json would have them, if that does not tell a quantization itself.

    Raises:
        ModelError: one of them cannot be read, or is no JSON object.
    """
    if name not in names:
        return None
    config, beside = (
        load_object(read_text_file(path), f"The configuration {quoted(path)}", unique=False)
        if file in names and (path := place.file(file))
        else {}
        for file in (name, QUANT_CONFIG)
    )
    config.pop(DESCRIBED_IN, None)  # which only what is made of another file has
    settings = beside.get("quantization")
    if isinstance(settings, dict) and settings and quantization_config(config) is None:
        config["quantization_config"] = {"quant_method": "modelopt", **settings}
    return config


def named_files(
    place: ModelPlace, weights: WeightFiles
) -> tuple[Sequence[str], Mapping[str, str] | None]:
    """The files of a model and, where an index names them, its weight map: tensor -> file. Raises
    ModelError for an index that cannot be read, or is not one."""
    if weights.index is None:
        return weights.files, None
    weight_map = read_index(read_text_file(place.file(weights.index)), weights.index)
    return sorted(set(weight_map.values())), weight_map


def open_at(
    place: ModelPlace,
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
