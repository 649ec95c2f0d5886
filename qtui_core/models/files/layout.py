"""Which files of a folder or a repository are the weights; and how to make safetensors of pickles,
which are not opened."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.models.files.local import load_object
from qtui_core.models.files.safetensors import Header
from qtui_core.models.quoting import listed, printable, quoted
from qtui_core.models.tensors import TensorInfo
from qtui_core.quantities import plural

CONFIG = "config.json"
#: Where ModelOpt tells its quantization, beside a config.json that does not.
QUANT_CONFIG = "hf_quant_config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
GGUF_SUFFIX = ".gguf"
#: How the sentence begins that says so, where there is nothing else to say.
NO_WEIGHTS = "There are no weights"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")

#: Each file given to it becomes a safetensors file of the same name beside it. Weights-only
#: loading refuses code; `clone` undoes sharing, which safetensors does not store.
CONVERT_COMMAND = (
    'python -c "import sys, torch; from safetensors.torch import save_file; '
    "[save_file({k: v.contiguous().clone() for k, v in torch.load(p, map_location='cpu', "
    "weights_only=True).items()}, p.rpartition('.')[0] + '.safetensors') for p in sys.argv[1:]]\""
)
#: More files than this are given to the command as one pattern.
_MAX_SPELLED = 3

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


def choose_weights(names: Iterable[str], where: str, folder: Path | None = None) -> WeightFiles:
    """The weights among the files of a folder or repository.

    In this order: `model.safetensors`, its index, `consolidated.safetensors`, the only index
    of another name, the only other safetensors file, one complete set of shards.

    Args:
        names: paths relative to the model; only those at its top count.
        where: what they are the contents of, for messages: "the folder 'x'".
        folder: where that is on this machine, if it is on it.

    Raises:
        ModelError: several files compete and nothing says which is meant, or a set of shards is
            not all there.
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
    if len(files) == 1 and not _SHARD.fullmatch(files[0]):
        return WeightFiles((files[0],))
    if files:
        return WeightFiles(_shards(files, where))
    return WeightFiles(missing=_why_none(top, where, folder))


def _shards(files: Sequence[str], where: str) -> tuple[str, ...]:
    """The files, if they are one complete set; a few tools count from 0."""
    matches = [match for match in map(_SHARD.fullmatch, files) if match]
    numbers = sorted(int(match[2]) for match in matches)
    count, sets = len(files), {(match[1], int(match[3])) for match in matches}
    whole = numbers in ([*range(count)], [*range(1, count + 1)])
    if whole and len(sets) == 1 and sets.pop()[1] == count:
        return tuple(files)
    raise ModelError(
        f"{where[0].upper()}{where[1:]} holds {plural(len(files), 'safetensors file')} "
        f"({listed([*files])}) and no index that says which belong together. Download what is "
        f"missing, or open one of them by its path."
    )


def _why_none(names: Sequence[str], where: str, folder: Path | None) -> str:
    get = "" if folder else "Download and "

    def paths(names: Sequence[str]) -> list[str]:
        return [str(folder / name) if folder else name for name in names]

    if pickles := weight_pickles(names):
        start = f"The weights in {where} are pickles ({listed(pickles)}); loading a pickle runs"
        return refusal(start, paths(pickles), f"{get}convert each".capitalize())
    if gguf := [n for n in names if n.lower().endswith(GGUF_SUFFIX)]:
        how = f"{get}open one by its path".capitalize()
        return (
            f"The weights in {where} are GGUF ({listed(gguf)}). {how}, for example "
            f"{quoted(paths(gguf)[0])}."
        )
    return f"{NO_WEIGHTS} ({SUFFIX}) in {where}."


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
    files: dict[str, str] = {}
    for file in weight_map.values():
        if not isinstance(file, str):
            raise ModelError(f"{what} is malformed: weight_map must map text to text.")
        if file not in files:
            if fault := _fault(file):
                raise ModelError(f"{what} names {quoted(file)}, {fault}.")
            files[file] = PurePosixPath(file).as_posix()  # without "./" and doubled slashes
    return {tensor: files[file] for tensor, file in weight_map.items()}


def _fault(name: str) -> str | None:
    """Why a file that an index names is not opened, on any system; None when it may be."""
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    elsewhere = posix.is_absolute() or windows.drive or windows.root or "://" in name
    if elsewhere or ".." in windows.parts:
        return "which is outside the model's folder; it is not followed"
    if not name.isprintable() or "\\" in name or not name.endswith(SUFFIX):
        return "which is not a safetensors file"
    return None


def merge_headers(headers: Iterable[Header]) -> tuple[dict[str, TensorInfo], dict[str, Any]]:
    """All tensors of a model in natural order of their names (layer 2 before layer 10), and
    the metadata of all its files.

    Raises:
        ModelError: a tensor is in two files.
    """
    tensors: dict[str, TensorInfo] = {}
    metadata: dict[str, Any] = {}
    for header in headers:
        for info in header.tensors:
            other = tensors.setdefault(info.name, info)
            if other is not info:
                raise ModelError(
                    f"Tensor {quoted(info.name)} is in two files: {quoted(other.file)} and "
                    f"{quoted(info.file)}."
                )
        metadata = {**header.metadata, **metadata}
    return {name: tensors[name] for name in sorted(tensors, key=natural_key)}, metadata


def natural_key(name: str) -> tuple[object, ...]:
    """Sorts digits inside a name as numbers. Never converts them: a name may hold more digits
    than Python turns into an int."""
    parts: list[object] = [*re.split(r"([0-9]+)", name)]
    for i, digits in enumerate(parts[1::2]):
        number = str(digits).lstrip("0")
        parts[2 * i + 1] = (len(number), number, len(str(digits)))
    return tuple(parts)


def weight_pickles(names: Sequence[str]) -> list[str]:
    """The pickles among the names of a folder, without the state of the training that made them
    (optimizer.pt, training_args.bin, …) where the weights have the name they usually have."""
    pickles = [n for n in names if n.lower().endswith(PICKLE_SUFFIXES)]
    return [n for n in pickles if n.startswith("pytorch_model")] or pickles


def refusal(start: str, paths: Sequence[str], how: str = "Convert it") -> str:
    """The sentence on pickles at these paths; `start` ends in what "code from the file" follows,
    `how` is what to do once."""
    return (
        f"{start} code from the file, so qtui does not open it. {how} once, where you trust it: "
        f"{convert_command(paths)}"
    )


def convert_command(paths: Sequence[str]) -> str:
    """The command that converts the pickles at these paths, every one to a file of its own."""
    # Two pickles of one name would end in one file: the second is another form of the first.
    distinct = [*{p.rpartition(".")[0]: p for p in reversed(paths)}.values()][::-1]
    words = [shlex.quote(printable(p)) for p in distinct]
    if len(distinct) > _MAX_SPELLED:
        # Of characters, as the shards of a model differ in their numbers.
        start = os.path.commonprefix(distinct)  # noqa: RUF071
        suffixes = sorted({p.rpartition(".")[2] for p in distinct})
        words = [f"{shlex.quote(printable(start))}*.{suffix}" for suffix in suffixes]
    return " ".join([CONVERT_COMMAND, *words])
