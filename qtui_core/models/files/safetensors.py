"""The safetensors header: eight bytes of length, JSON, then the tensors end to end.

Format: https://huggingface.co/docs/safetensors, and the checks of its reference reader
(`Metadata::validate` in safetensors 0.8). What that reader refuses is refused here, with two
differences: a dtype that is not known is listed, and a repeated name is an error.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.models.files.local import load_object, regular_file_size, unreadable
from qtui_core.models.quoting import printable, quoted
from qtui_core.models.tensors import DTYPE_BITS, READABLE_DTYPES, TensorInfo

#: Bytes before the JSON: its length as a little-endian unsigned 64-bit integer.
PREFIX = 8
#: The longest header the reference reader accepts, bytes.
MAX_HEADER = 100_000_000
#: Sizes beyond this cannot be stored or addressed anywhere.
MAX_SIZE = 2**63 - 1
#: Dimensions a tensor may have: the limit of numpy and of torch.
MAX_RANK = 64

_OTHER_FORMATS: tuple[tuple[bytes, str], ...] = (
    (
        b"version https://git-lfs",
        "is a Git LFS pointer, not the weights themselves; run `git lfs pull` in its folder",
    ),
    (b"GGUF", "is a GGUF file under a safetensors name; call it .gguf and open that"),
    (b"PK\x03\x04", "is a zip archive, as torch.save writes, under a safetensors name"),
    (b"\x80\x02", "is a pickle under a safetensors name"),
    (b"<", "looks like a web page, not weights; the download went wrong"),
)


@dataclass(frozen=True)
class Header:
    """The header of one file: its tensors in file order, and the free-text metadata."""

    tensors: tuple[TensorInfo, ...]
    metadata: Mapping[str, Any]


def read_header(path: Path, name: str) -> Header:
    """Header of the safetensors file at `path`, its tensors filed under `name`.

    Raises:
        ModelError: the file cannot be read, or its header is not true of it.
    """
    size = regular_file_size(path)
    try:
        with path.open("rb") as stream:
            start = stream.read(PREFIX + 16)
            length = header_length(start, name, size)
            stream.seek(PREFIX)
            raw = stream.read(length)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(raw) != length:
        raise ModelError(f"{quoted(name)} became shorter while it was read.")
    return parse_header(raw, name, size)


def header_length(start: bytes, file: str, size: int) -> int:
    """Length of the JSON header in bytes, from the first bytes of a file of `size` bytes.

    Raises:
        ModelError: the file is too short, is another format, or claims a header that is
            longer than the file or than any header may be.
    """
    if len(start) < PREFIX:
        raise ModelError(
            f"{quoted(file)} has {size:,} bytes, too few for a safetensors file; "
            f"it is empty or was cut off."
        )
    (length,) = struct.unpack_from("<Q", start)
    if length > MAX_HEADER:
        # Only now: a true length may begin with the bytes of any of these.
        for magic, sentence in _OTHER_FORMATS:
            if start.startswith(magic):
                raise ModelError(f"{quoted(file)} {sentence}.")
        raise ModelError(
            f"{quoted(file)} is not a safetensors file: it claims a header of {length:,} bytes, "
            f"and {MAX_HEADER:,} is the most there may be."
        )
    if PREFIX + length > size:
        raise ModelError(
            f"{quoted(file)} claims a header of {length:,} bytes but has only {size:,} bytes "
            f"in all; it was cut off, or is not a safetensors file."
        )
    return int(length)


def parse_header(raw: bytes, file: str, size: int) -> Header:
    """The tensors that a header names, checked against each other and the size of the file.

    Args:
        raw: the JSON text, `header_length` bytes.
        file: name of the file, for messages and `TensorInfo.file`.
        size: bytes of the whole file.

    Raises:
        ModelError: anything about the header that is not true of the file.
    """
    what = f"The safetensors header of {quoted(file)}"
    document = load_object(raw, what, unique=True)
    metadata = _metadata(document.pop("__metadata__", None), what)
    start = PREFIX + len(raw)
    tensors = [_tensor(name, entry, file, start, what) for name, entry in document.items()]
    tensors.sort(key=lambda t: (t.begin, t.end))
    _check_coverage(tensors, start, size, what)
    return Header(tuple(tensors), metadata)


def _metadata(value: Any, what: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise ModelError(f"{what} is malformed: __metadata__ must map text to text.")
    return value


def _tensor(name: str, entry: Any, file: str, start: int, what: str) -> TensorInfo:
    where = f"{what} is malformed at tensor {quoted(name)}"
    if not isinstance(entry, dict):
        raise ModelError(f"{where}: its description is not an object.")
    dtype = entry.get("dtype")
    if not isinstance(dtype, str):
        raise ModelError(f"{where}: it has no dtype.")
    shape = _sizes(entry.get("shape"), "shape", where)
    if len(shape) > MAX_RANK:
        raise ModelError(f"{where}: it has {len(shape):,} dimensions; {MAX_RANK} is the most.")
    offsets = _sizes(entry.get("data_offsets"), "data_offsets", where)
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ModelError(f"{where}: data_offsets are not a beginning and an end.")
    begin, end = offsets
    elements = math.prod(shape)
    if elements > MAX_SIZE:
        raise ModelError(f"{where}: its shape multiplies to more than 2^63 elements.")
    bits = DTYPE_BITS.get(dtype)
    if bits is not None and elements * bits != 8 * (end - begin):
        raise ModelError(
            f"{where}: shape {list(shape)} of {dtype} takes {elements * bits / 8:,.10g} bytes, "
            f"but its data_offsets give it {end - begin:,}."
        )
    return TensorInfo(
        name=name,
        dtype=printable(dtype[:40]),
        shape=shape,
        parameters=elements,
        nbytes=end - begin,
        file=file,
        begin=start + begin,
        end=start + end,
        readable=dtype in READABLE_DTYPES,
    )


def _sizes(value: Any, field: str, where: str) -> tuple[int, ...]:
    # `type` rather than isinstance: JSON `true` is an int to Python, and no size.
    if isinstance(value, list) and all(type(v) is int and 0 <= v <= MAX_SIZE for v in value):
        return tuple(value)
    raise ModelError(f"{where}: {field} is not a list of whole numbers from 0 to 2^63.")


def _check_coverage(tensors: Sequence[TensorInfo], start: int, size: int, what: str) -> None:
    position = start
    for tensor in tensors:
        if tensor.begin != position:
            fault = "overlaps the one before it" if tensor.begin < position else "leaves a hole"
            raise ModelError(
                f"{what} is malformed: the data of tensor {quoted(tensor.name)} {fault} "
                f"at byte {tensor.begin:,}."
            )
        position = tensor.end
    if position != size:
        left = "it was cut off, so download or copy it again"
        if position < size:
            left = f"{size - position:,} bytes belong to no tensor"
        raise ModelError(
            f"{what} describes a file of {position:,} bytes, but it has {size:,}; {left}."
        )
