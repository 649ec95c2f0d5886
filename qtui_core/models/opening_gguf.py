"""A model in a GGUF file of this machine, or in several that it was split into."""

from __future__ import annotations

import os
import re
from pathlib import Path

from qtui_core.errors import ModelError
from qtui_core.models.assemble import Progress
from qtui_core.models.files.gguf import config_of, describe_gguf, read_gguf_header
from qtui_core.models.files.layout import natural_key
from qtui_core.models.files.links import followed
from qtui_core.models.files.local import LocalFile
from qtui_core.models.quoting import listed, printable, quoted
from qtui_core.models.source import ModelSource
from qtui_core.models.tensors import TensorInfo

_SPLIT = re.compile(
    r"(?P<stem>.+)-[0-9]{5}-of-(?P<total>[0-9]{5})(?P<suffix>\.gguf)", re.IGNORECASE
)


def open_gguf(path: Path, name: str, progress: Progress | None) -> ModelSource:
    """The model in a GGUF file, with its other files where it was split.

    Raises:
        ModelError: it cannot be opened, or parts of it are missing.
    """
    paths = _split_files(path)
    files = {part.name: LocalFile(part) for part in paths}
    tensors: dict[str, TensorInfo] = {}
    metadata: dict[str, object] = {}
    for done, part in enumerate(paths, 1):
        header = read_gguf_header(part, part.name)
        for info in header.tensors:
            other = tensors.setdefault(info.name, info)
            if other is not info:
                raise ModelError(
                    f"Tensor {quoted(info.name)} is in two files: {quoted(other.file)} and "
                    f"{quoted(info.file)}."
                )
        metadata = {**header.metadata, **metadata}
        if progress:
            progress(done, len(paths))
    return ModelSource(
        id=printable(name),
        origin="file",
        location=printable(str(path)),
        config=config_of(metadata, tensors) or None,
        tensors={n: tensors[n] for n in sorted(tensors, key=natural_key)},
        quantization=describe_gguf(tensors),
        metadata={k: str(v) for k, v in metadata.items() if isinstance(v, str | int | float)},
        missing_weights=None if tensors else f"{quoted(name)} holds metadata and no tensors.",
        files=files,
    )


def _split_files(path: Path) -> list[Path]:
    """A GGUF file and the others of its set, which llama.cpp names x-00001-of-00003.gguf."""
    match = _SPLIT.fullmatch(path.name)
    if match is None:
        return [path]
    stem, digits, total = match["stem"], match["total"], int(match["total"])
    if not 1 <= total <= 10_000:
        return [path]
    names = [f"{stem}-{i:0{len(digits)}}-of-{digits}{match['suffix']}" for i in range(1, total + 1)]
    absent = [n for n in names if not os.path.lexists(path.parent / n)]
    if absent:
        raise ModelError(
            f"{quoted(path.name)} is one of {total:,} files of a model; missing beside it: "
            f"{listed(absent)}."
        )
    return [followed(path.parent, n, path) for n in names]
