"""Which files of a folder or a repository are the weights."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath

from qtui_core.errors import ModelError
from qtui_core.models.jsontext import load_object
from qtui_core.models.quoting import listed, printable, quoted
from qtui_core.models.safetensors import Header
from qtui_core.models.tensors import TensorInfo

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")

#: Weights-only loading refuses code; `clone` undoes sharing, which safetensors does not store.
CONVERT_COMMAND = (
    'python -c "import sys, torch; from safetensors.torch import save_file; '
    "state = torch.load(sys.argv[1], map_location='cpu', weights_only=True); "
    'save_file({k: v.contiguous().clone() for k, v in state.items()}, sys.argv[2])"'
)

_SHARD = re.compile(r"(.+)-(\d{1,9})-of-(\d{1,9})\.safetensors")


@dataclass(frozen=True)
class WeightFiles:
    """Attributes:
    files: the safetensors files that make up the model, or none with an index.
    index: the index that names them instead.
    missing: when there are neither: why, as a sentence.
    """

    files: tuple[str, ...] = ()
    index: str | None = None
    missing: str | None = None


def choose_weights(names: Iterable[str], where: str) -> WeightFiles:
    """The weights among the files of a folder or repository.

    In this order: `model.safetensors`, its index, `consolidated.safetensors`, the only index
    of another name, the only other safetensors file, one complete set of shards.

    Args:
        names: paths relative to the model; only those at its top count.
        where: what they are the contents of, for messages: "the folder 'x'".

    Raises:
        ModelError: several files compete and nothing says which is meant.
    """
    top = sorted(n for n in names if "/" not in n)
    files = [n for n in top if n.endswith(SUFFIX)]
    indexes = [n for n in top if n.endswith(INDEX_SUFFIX)]
    if SINGLE in files:
        return WeightFiles((SINGLE,))
    if INDEX in indexes:
        return WeightFiles(index=INDEX)
    if "consolidated.safetensors" in files:
        return WeightFiles(("consolidated.safetensors",))
    if len(indexes) == 1:
        return WeightFiles(index=indexes[0])
    if len(files) == 1:
        return WeightFiles((files[0],))
    if files:
        return WeightFiles(_shards(files, where))
    return WeightFiles(missing=_why_none(top, where))


def _shards(files: Sequence[str], where: str) -> tuple[str, ...]:
    matches = [_SHARD.fullmatch(n) for n in files]
    series = {(m[1], int(m[3])) for m in matches if m}
    if len(series) != 1 or not all(matches):
        raise ModelError(
            f"{where[0].upper()}{where[1:]} holds {len(files)} safetensors files "
            f"({listed(list(files))}) and no index that says which belong together. "
            f"Open one of them by its path."
        )
    ((_, count),) = series
    if len(files) != count:
        raise ModelError(
            f"{where[0].upper()}{where[1:]} holds {len(files)} of {count} shards "
            f"({listed(list(files))}); the others are missing."
        )
    return tuple(files)


def _why_none(names: Sequence[str], where: str) -> str:
    pickles = [n for n in names if n.endswith(PICKLE_SUFFIXES)]
    if pickles:
        return (
            f"The weights in {where} are pickles ({listed(pickles)}); loading a pickle runs "
            f"code from the file, so qtui does not open it. Convert each once, where you trust "
            f"it: {CONVERT_COMMAND} {_shell(pickles[0])} {SINGLE}"
        )
    gguf = [n for n in names if n.endswith(".gguf")]
    if gguf:
        return (
            f"The weights in {where} are GGUF ({listed(gguf)}), which qtui does not read; "
            f"open the safetensors model they were made from."
        )
    return f"There are no weights (.safetensors) in {where}."


def _shell(name: str) -> str:
    return shlex.quote(printable(name))


def refuse_file(path: str) -> ModelError | None:
    """The reason a single file of this name is not opened, if there is one."""
    lowered = path.lower()
    if lowered.endswith(PICKLE_SUFFIXES):
        target = path.rpartition(".")[0] + SUFFIX
        return ModelError(
            f"{quoted(path)} is a pickle: loading it runs code from the file, so qtui does not "
            f"open it. Convert it once, where you trust it: "
            f"{CONVERT_COMMAND} {_shell(path)} {_shell(target)}"
        )
    if lowered.endswith(".gguf"):
        return ModelError(
            f"{quoted(path)} is a GGUF file, which qtui does not read; open the safetensors "
            f"model it was made from."
        )
    return None


def read_index(raw: bytes, name: str) -> dict[str, str]:
    """The weight map of a shard index: tensor name -> file name.

    Raises:
        ModelError: malformed, or naming a file that is not a safetensors file inside the
            model: an index is downloaded, and must not choose files elsewhere.
    """
    what = f"The index {quoted(name)}"
    weight_map = load_object(raw, what, unique=True).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{what} has no weight_map, so it names no shards.")
    for file in dict.fromkeys(v if isinstance(v, str) else None for v in weight_map.values()):
        if file is None:
            raise ModelError(f"{what} is malformed: weight_map must map text to text.")
        if not is_inside(file):
            raise ModelError(
                f"{what} names {quoted(file)}, which is outside the model's folder; "
                f"it is not followed."
            )
        if not file.endswith(SUFFIX):
            raise ModelError(f"{what} names {quoted(file)}, which is not a safetensors file.")
    return weight_map


def is_inside(name: str) -> bool:
    """Whether a relative file name stays inside the folder it is relative to, on any system."""
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    return not (
        not name.isprintable()
        or posix.is_absolute()
        or windows.drive
        or windows.root
        or "\\" in name
        or ".." in posix.parts
        or posix.as_posix() != name
    )


def merge_headers(
    headers: Sequence[Header], weight_map: Mapping[str, str] | None, index: str | None
) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """All tensors of a model in natural order of their names (layer 2 before layer 10), and
    the metadata of all its files.

    Raises:
        ModelError: a tensor is in two files, or not in the file the index says.
    """
    tensors: dict[str, TensorInfo] = {}
    metadata: dict[str, str] = {}
    for header in headers:
        for info in header.tensors:
            other = tensors.setdefault(info.name, info)
            if other is not info:
                raise ModelError(
                    f"Tensor {quoted(info.name)} is in two shards: {quoted(other.file)} and "
                    f"{quoted(info.file)}."
                )
        for key, value in header.metadata.items():
            metadata.setdefault(key, value)
    for name, file in (weight_map or {}).items():
        if name not in tensors or tensors[name].file != file:
            raise ModelError(
                f"The index {quoted(index)} says tensor {quoted(name)} is in {quoted(file)}, "
                f"but it is not."
            )
    ordered = sorted(tensors, key=natural_key)
    return {name: tensors[name] for name in ordered}, metadata


def natural_key(name: str) -> tuple[object, ...]:
    """Sorts digits inside a name as numbers. Never converts them: a name may hold more digits
    than Python turns into an int."""
    parts = re.split(r"([0-9]+)", name)
    key: list[object] = []
    for i, part in enumerate(parts):
        if i % 2:
            digits = part.lstrip("0")
            key.append((len(digits), digits, len(part)))
        else:
            key.append(part)
    return tuple(key)
