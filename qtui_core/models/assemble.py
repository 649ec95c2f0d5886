"""From the headers of a model's files to a ModelSource."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.models.files.jsontext import load_object
from qtui_core.models.files.layout import WeightFiles, merge_headers, read_index
from qtui_core.models.files.local import read_text_file
from qtui_core.models.files.safetensors import Header
from qtui_core.models.quoting import listed, printable, quoted
from qtui_core.models.recognise import quantization_config, recognise, with_roles
from qtui_core.models.source import ModelSource, TensorFile
from qtui_core.models.tensors import DESCRIBED_IN, with_stacks

#: Told how many of the model's files have had their headers read, and how many there are.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class FoundWeights:
    """The weights of a model as they are found: which files, then their headers.

    Attributes:
        names: files of the model.
        index: the index they were named by, if one was.
        weight_map: what that index says: tensor name -> file.
        missing: why there are no files, when there are none.
        headers, files: of the files in that order and by name, once they were opened.
    """

    names: tuple[str, ...] = ()
    index: str | None = None
    weight_map: Mapping[str, str] | None = None
    missing: str | None = None
    headers: tuple[Header, ...] = ()
    files: Mapping[str, TensorFile] = field(default_factory=dict)


def find_weights(chosen: WeightFiles, read: Callable[[str], bytes]) -> FoundWeights:
    """The files that `chosen` stands for; `read` gets the text of an index by its name.

    Raises:
        ModelError: the index cannot be read, or is not one.
    """
    if chosen.index is None:
        return FoundWeights(chosen.files, missing=chosen.missing)
    weight_map = read_index(read(chosen.index), chosen.index)
    return FoundWeights(tuple(sorted(set(weight_map.values()))), chosen.index, weight_map)


def check_complete(weights: FoundWeights, there: Callable[[str], bool], where: str) -> None:
    """Raises ModelError when files that an index names are not there."""
    absent = [name for name in weights.names if not there(name)]
    if absent:
        total = len(weights.names)
        raise ModelError(
            f"The index {quoted(weights.index)} names {total:,} shard{'s' if total > 1 else ''}; "
            f"missing from {where}: {listed(absent)}."
        )


def read_config(path: Path, beside: Path | None = None) -> dict[str, Any]:
    """A config.json. A key given twice counts as the last one, as transformers reads it. `beside`
    is the model's hf_quant_config.json, if it has one: its settings are put where config.json would
    have them, if that does not tell a quantization itself.

    Raises:
        ModelError: one of them cannot be read, or is no JSON object.
    """
    config, told = (
        {} if file is None else load_object(
            read_text_file(file), f"The configuration {quoted(file)}", unique=False
        )
        for file in (path, beside)
    )  # fmt: skip
    config.pop(DESCRIBED_IN, None)  # which only what is made of another file has
    settings = told.get("quantization")
    if isinstance(settings, dict) and settings and quantization_config(config) is None:
        config["quantization_config"] = {"quant_method": "modelopt", **settings}
    return config


def assemble(
    *,
    name: str,
    origin: str,
    location: Path | str,
    config: Mapping[str, Any] | None,
    weights: FoundWeights,
    commit: str | None = None,
) -> ModelSource:
    """The model that these files make up.

    Raises:
        ModelError: the files contradict each other or their index.
    """
    tensors, metadata = merge_headers(weights.headers, weights.weight_map, weights.index)
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
        files=weights.files,
    )
