"""The header of a GGUF file: metadata, then names, shapes, types and places of its tensors.

Format: docs/gguf.md of ggml, versions 2 and 3, little-endian. Every count and length is
checked against the size of the file before anything is made of it.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.models.files.ggml_types import BY_NAME, GGML_TYPES, GgmlType
from qtui_core.models.files.local import regular_file_size, unreadable
from qtui_core.models.files.safetensors import MAX_SIZE
from qtui_core.models.quoting import printable, quoted
from qtui_core.models.recognise import QuantizationInfo
from qtui_core.models.tensors import DESCRIBED_IN, Role, TensorInfo

MAGIC = b"GGUF"
#: Dimensions of a tensor: GGML_MAX_DIMS.
MAX_DIMENSIONS = 4
#: Data of each tensor starts at a multiple of this many bytes unless the metadata says else.
ALIGNMENT = 32
#: Metadata values longer than this (vocabularies) are skipped and not kept.
KEPT_ELEMENTS = 1024
#: Bytes of the name of a tensor or a key: the limit of the format for keys.
MAX_NAME = 65_535
#: More tensors or metadata entries than this no model has.
MAX_ENTRIES = 1_000_000

#: Scalars of the metadata, by the number of their type.
_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GgufHeader:
    """Attributes:
    tensors: in file order; shapes as numpy has them, rows first.
    metadata: scalars, texts and short lists by key.
    """

    tensors: tuple[TensorInfo, ...]
    metadata: Mapping[str, Any]


def read_gguf_header(path: Path, name: str) -> GgufHeader:
    """Header of the GGUF file at `path`, its tensors filed under `name`.

    Raises:
        ModelError: it cannot be read, is no GGUF file of this byte order and a known version,
            or its header is not true of it.
    """
    size = regular_file_size(path)
    try:
        with path.open("rb") as stream:
            return _Reader(stream, name, size).header()
    except OSError as error:
        raise unreadable(path, error) from error


class _Reader:
    def __init__(self, stream: BinaryIO, name: str, size: int) -> None:
        self._stream = stream
        self._size = size
        self._file = name
        self._what = f"The GGUF header of {quoted(name)}"
        self._position = 0

    def header(self) -> GgufHeader:
        self._check_start()
        tensor_count = self._count("tensors")
        entry_count = self._count("metadata entries")
        metadata: dict[str, Any] = {}
        for _ in range(entry_count):
            key = self._text()
            if key in metadata:
                raise ModelError(f"{self._what} has the key {quoted(key)} twice.")
            metadata[key] = self._value(self._number("<I"), key)
        entries = [self._entry() for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise ModelError(f"{self._what} is malformed: its alignment is no power of two.")
        start = -(-self._position // alignment) * alignment
        tensors = [self._tensor(*entry, start, alignment) for entry in entries]
        self._check_places(tensors)
        return GgufHeader(tuple(tensors), metadata)

    def _check_start(self) -> None:
        magic = self._stream.read(4)
        self._position = 4
        if magic != MAGIC:
            if self._size < 4:
                raise ModelError(
                    f"{quoted(self._file)} has {self._size} bytes; it is empty or was cut off."
                )
            raise ModelError(
                f"{quoted(self._file)} is not a GGUF file: it starts with {magic!r} and not with "
                f"{MAGIC!r}."
            )
        version = self._number("<I")
        if version >= 1 << 16:
            raise ModelError(
                f"{quoted(self._file)} is a GGUF file of big-endian numbers, which qtui does not "
                f"read; convert it with gguf_convert_endian.py of llama.cpp."
            )
        if version not in (2, 3):
            raise ModelError(
                f"{quoted(self._file)} is GGUF version {version}; qtui reads versions 2 and 3."
            )

    def _bytes(self, count: int) -> bytes:
        raw = self._stream.read(count) if self._position + count <= self._size else b""
        if len(raw) != count:
            raise ModelError(
                f"{self._what} ends before it is complete: byte {self._position + count:,} is "
                f"asked for and the file has {self._size:,}. It was cut off; download it again."
            )
        self._position += count
        return raw

    def _number(self, layout: str) -> Any:
        return struct.unpack(layout, self._bytes(struct.calcsize(layout)))[0]

    def _count(self, of_what: str) -> int:
        count = int(self._number("<Q"))
        if count > MAX_ENTRIES:
            raise ModelError(f"{self._what} is malformed: it claims {count:,} {of_what}.")
        return count

    def _text(self) -> str:
        length = self._number("<Q")
        if length > MAX_NAME:
            raise ModelError(f"{self._what} is malformed: a name of {length:,} bytes.")
        try:
            return self._bytes(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelError(f"{self._what} holds a name that is not valid UTF-8.") from error

    def _value(self, kind: int, key: str) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _STRING:
            # Tokens need not be valid text, and neither does what is only shown.
            return self._bytes(self._number("<Q")).decode("utf-8", "replace")
        if kind == _ARRAY:
            return self._array(key)
        raise ModelError(
            f"{self._what} is malformed: {quoted(key)} has a value of unknown type {kind}."
        )

    def _array(self, key: str) -> tuple[Any, ...] | None:
        """A list of scalars or texts; None for one too long to be of use here."""
        kind, count = self._number("<I"), int(self._number("<Q"))
        if kind in _SCALARS:
            width = struct.calcsize(_SCALARS[kind])
            raw = self._bytes(count * width) if count <= KEPT_ELEMENTS else None
            if raw is None:
                self._skip(count * width)
                return None
            return tuple(value for (value,) in struct.iter_unpack(_SCALARS[kind], raw))
        if kind == _STRING:
            kept = count <= KEPT_ELEMENTS
            texts = []
            for _ in range(count):
                length = int(self._number("<Q"))
                if kept:
                    texts.append(self._bytes(length).decode("utf-8", "replace"))
                else:
                    self._skip(length)
            return tuple(texts) if kept else None
        raise ModelError(
            f"{self._what} is malformed: {quoted(key)} is a list of unknown type {kind}."
        )

    def _skip(self, count: int) -> None:
        if self._position + count > self._size:
            self._bytes(count)  # which says so
        self._stream.seek(count, 1)
        self._position += count

    def _entry(self) -> tuple[str, tuple[int, ...], int, int]:
        """(name, shape, type, offset of the data)."""
        name = self._text()
        dimensions = self._number("<I")
        if dimensions > MAX_DIMENSIONS:
            raise ModelError(
                f"{self._what} is malformed at tensor {quoted(name)}: it has {dimensions:,} "
                f"dimensions; {MAX_DIMENSIONS} is the most."
            )
        # The file lists the fastest dimension first; numpy lists it last.
        shape = tuple(int(self._number("<Q")) for _ in range(dimensions))[::-1]
        return name, shape, self._number("<I"), int(self._number("<Q"))

    def _tensor(
        self, name: str, shape: tuple[int, ...], number: int, offset: int, start: int, align: int
    ) -> TensorInfo:
        where = f"{self._what} is malformed at tensor {quoted(name)}"
        kind = GGML_TYPES.get(number)
        if kind is None:
            raise ModelError(
                f"Tensor {quoted(name)} of {quoted(self._file)} is of GGML type {number}, which "
                f"qtui does not know; it may be newer than this qtui."
            )
        elements = math.prod(shape)
        if elements > MAX_SIZE:
            raise ModelError(f"{where}: its shape multiplies to more than 2^63 elements.")
        columns = shape[-1] if shape else 1
        if columns % kind.block:
            raise ModelError(
                f"{where}: rows of {columns:,} elements are no whole number of blocks of "
                f"{kind.block}, which {kind.name} has."
            )
        if offset % align:
            raise ModelError(f"{where}: its data at {offset:,} is not aligned to {align} bytes.")
        nbytes = elements // kind.block * kind.nbytes
        begin = start + offset
        if begin + nbytes > self._size:
            raise ModelError(
                f"{self._what} describes a file of at least {begin + nbytes:,} bytes, but it has "
                f"{self._size:,}; it was cut off, so download or copy it again."
            )
        return TensorInfo(
            name=name,
            dtype=kind.name,
            shape=shape,
            parameters=elements,
            nbytes=nbytes,
            file=self._file,
            begin=begin,
            end=begin + nbytes,
            readable=kind.is_plain or (kind.is_known_to_gguf and len(shape) > 1),
            role=Role.VALUES if kind.is_plain else Role.CODES,
        )

    def _check_places(self, tensors: list[TensorInfo]) -> None:
        names: set[str] = set()
        end = 0
        for tensor in sorted(tensors, key=lambda t: (t.begin, t.end)):
            if tensor.name in names:
                raise ModelError(f"{self._what} has tensor {quoted(tensor.name)} twice.")
            names.add(tensor.name)
            if tensor.begin < end:
                raise ModelError(
                    f"{self._what} is malformed: the data of tensor {quoted(tensor.name)} "
                    f"overlaps the one before it."
                )
            end = max(end, tensor.end)


def ggml_type(dtype: str) -> GgmlType | None:
    """The quantized GGML type of that name; None for plain numbers and other names."""
    kind = BY_NAME.get(dtype)
    return None if kind is None or kind.is_plain else kind


def describe_gguf(tensors: Mapping[str, TensorInfo]) -> QuantizationInfo | None:
    """What a GGUF file is quantized with; None where every tensor is plain numbers."""
    codes = [t for t in tensors.values() if t.role is Role.CODES]
    if not codes:
        return None
    kinds = Counter(t.dtype for t in codes)
    weights = sum(t.parameters for t in codes)
    bits = 8 * sum(t.nbytes for t in codes) / weights if weights else 0.0
    listed = ", ".join(f"{count:,} of {name}" for name, count in kinds.most_common())
    return QuantizationInfo(
        method="gguf",
        detail=(
            f"{len(codes):,} of {len(tensors):,} tensors hold GGUF blocks ({listed}): "
            f"{weights:,} weights at {bits:.2f} bits each, scales counted. Statistics are of the "
            f"decoded values."
        ),
        tensors=tuple(t.name for t in codes),
        parameters={t.name: t.parameters for t in codes},
    )


def config_of(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    """What of a config.json the metadata knows, under the names that has for it, and what the
    tensors show: the size of the vocabulary, and an output layer of its own or none (llama.cpp
    then takes the embedding)."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        return {}
    config: dict[str, Any] = {
        "model_type": printable(architecture[:100]),
        DESCRIBED_IN: "GGUF metadata",
    }
    if (table := tensors.get("token_embd.weight")) is not None and table.shape:
        config["vocab_size"] = table.shape[0]
        config["tie_word_embeddings"] = "output.weight" not in tensors
    for key, name in (
        ("embedding_length", "hidden_size"),
        ("block_count", "num_hidden_layers"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.key_length", "head_dim"),
        ("context_length", "max_position_embeddings"),
        ("vocab_size", "vocab_size"),
    ):
        value = metadata.get(f"{architecture}.{key}")
        if type(value) is int and name not in config:
            config[name] = value
    return config
