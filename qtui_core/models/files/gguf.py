"""The header of a GGUF file: metadata, then names, shapes, types and places of its tensors.

Format: docs/gguf.md of ggml, versions 2 and 3, little-endian. Every count and length is
checked against the size of the file before anything is made of it. The blocks of the types are
those of `GGML_QUANT_SIZES` of gguf 0.19 and `ggml-common.h` of llama.cpp, which it mirrors.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.models.files.local import followed, regular_file_size, unreadable
from qtui_core.models.files.safetensors import MAX_SIZE, Header
from qtui_core.models.quoting import listed, printable, quoted
from qtui_core.models.recognise import CodeTensor, QuantizationInfo
from qtui_core.models.tensors import DESCRIBED_IN, DTYPE_BITS, Role, TensorInfo

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
_SPLIT = re.compile(r"(.+)-[0-9]{5}-of-([0-9]{5})(\.gguf)", re.IGNORECASE)


@dataclass(frozen=True)
class GgmlType:
    """Attributes:
    name: what llama.cpp calls it; for plain numbers the safetensors tag, which is the same.
    block: elements of a row that share scales; rows are whole blocks.
    nbytes: bytes of one block.
    """

    name: str
    block: int
    nbytes: int

    @property
    def is_plain(self) -> bool:
        """Numbers stored as they are, without a scale."""
        return self.name in DTYPE_BITS


#: Types that the gguf library has no code to decode.
_UNDECODED = frozenset({"Q8_1", "Q8_K", "Q1_0"})

#: By the number that stands for the type in a file. 4, 5 and 31 to 38 were given up.
GGML_TYPES = {
    number: GgmlType(*row)
    for number, row in {
        0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
        6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40),
        10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
        13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
        16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98),
        19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
        22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2),
        26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56),
        30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
        40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
    }.items()
}  # fmt: skip

BY_NAME = {kind.name: kind for kind in GGML_TYPES.values()}


def split_files(path: Path) -> list[Path]:
    """A GGUF file and the others of its set, which llama.cpp names x-00001-of-00003.gguf. Raises
    ModelError if some are missing."""
    match = _SPLIT.fullmatch(path.name)
    total = int(match[2]) if match else 0
    if match is None or not 1 <= total <= 10_000:
        return [path]
    names = [f"{match[1]}-{i:05}-of-{match[2]}{match[3]}" for i in range(1, total + 1)]
    absent = [name for name in names if not os.path.lexists(path.parent / name)]
    if absent:
        raise ModelError(
            f"{quoted(path.name)} is one of {total:,} files of a model; missing beside it: "
            f"{listed(absent)}."
        )
    return [followed(path.parent, name, path) for name in names]


def read_gguf_header(path: Path, name: str) -> Header:
    """Header of the GGUF file at `path`, its tensors filed under `name`, in file order; shapes as
    numpy has them, rows first. The metadata are scalars, texts and short lists by key.

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

    def header(self) -> Header:
        magic = self._stream.read(4)
        self._position = 4
        if magic != b"GGUF":
            raise ModelError(
                f"{quoted(self._file)} is not a GGUF file: it starts with {magic!r}, not b'GGUF'."
            )
        if (version := self._number("<I")) not in (2, 3):
            raise ModelError(
                f"{quoted(self._file)} is GGUF version {version}; qtui reads versions 2 and 3, of "
                f"little-endian numbers."
            )
        counts = self._number("<Q"), self._number("<Q")
        if max(counts) > MAX_ENTRIES:
            raise self._malformed(f"it claims {max(counts):,} entries")
        metadata: dict[str, Any] = {}
        for _ in range(counts[1]):
            key = self._text()
            if key in metadata:
                raise self._malformed(f"the key {quoted(key)} is there twice")
            metadata[key] = self._value(self._number("<I"), key)
        entries = [self._entry() for _ in range(counts[0])]
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise self._malformed("its alignment is no power of two")
        start = -(-self._position // alignment) * alignment
        tensors = [self._tensor(*entry, start, alignment) for entry in entries]
        self._check_places(tensors)
        return Header(tuple(tensors), metadata)

    def _malformed(self, fault: str, tensor: str | None = None) -> ModelError:
        at = "" if tensor is None else f" at tensor {quoted(tensor)}"
        return ModelError(f"{self._what} is malformed{at}: {fault}.")

    def _bytes(self, count: int, *, skip: bool = False) -> bytes:
        """The next bytes; none of those that are skipped."""
        raw = b""
        if (fits := self._position + count <= self._size) and skip:
            self._stream.seek(count, 1)
        elif fits:
            raw = self._stream.read(count)
        if not fits or len(raw) != (0 if skip else count):
            raise ModelError(
                f"{self._what} ends before it is complete: byte {self._position + count:,} is "
                f"asked for and the file has {self._size:,}. It was cut off; download it again."
            )
        self._position += count
        return raw

    def _number(self, layout: str) -> Any:
        return struct.unpack(layout, self._bytes(struct.calcsize(layout)))[0]

    def _text(self) -> str:
        if (length := self._number("<Q")) > MAX_NAME:
            raise self._malformed(f"it has a name of {length:,} bytes")
        try:
            return self._bytes(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._malformed("it holds a name that is not valid UTF-8") from error

    def _value(self, kind: int, key: str) -> Any:
        """A scalar, a text, or a list of them: None for one too long to be of use here."""
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _STRING:
            # Tokens need not be valid text, and neither does what is only shown.
            return self._bytes(self._number("<Q")).decode("utf-8", "replace")
        inner, count = (self._number("<I"), self._number("<Q")) if kind == _ARRAY else (kind, 0)
        kept = count <= KEPT_ELEMENTS
        if kind == _ARRAY and inner in _SCALARS:
            raw = self._bytes(count * struct.calcsize(_SCALARS[inner]), skip=not kept)
            return tuple(v for (v,) in struct.iter_unpack(_SCALARS[inner], raw)) if kept else None
        if kind == _ARRAY and inner == _STRING:
            texts = []
            for _ in range(count):
                raw = self._bytes(self._number("<Q"), skip=not kept)
                texts += [raw.decode("utf-8", "replace")] if kept else []
            return tuple(texts) if kept else None
        raise self._malformed(f"{quoted(key)} has values of unknown type {inner}")

    def _entry(self) -> tuple[str, tuple[int, ...], int, int]:
        """(name, shape, type, offset of the data)."""
        name = self._text()
        if (dimensions := self._number("<I")) > MAX_DIMENSIONS:
            raise self._malformed(
                f"it has {dimensions:,} dimensions; {MAX_DIMENSIONS} is the most", name
            )
        # The file lists the fastest dimension first; numpy lists it last.
        shape = tuple(self._number("<Q") for _ in range(dimensions))[::-1]
        return name, shape, self._number("<I"), self._number("<Q")

    def _tensor(
        self, name: str, shape: tuple[int, ...], number: int, offset: int, start: int, align: int
    ) -> TensorInfo:
        kind, elements = GGML_TYPES.get(number), math.prod(shape)
        if kind is None:
            raise ModelError(
                f"Tensor {quoted(name)} of {quoted(self._file)} is of GGML type {number}, which "
                f"qtui does not know; it may be newer than this qtui."
            )
        if elements > MAX_SIZE:
            raise self._malformed("its shape multiplies to more than 2^63 elements", name)
        columns = shape[-1] if shape else 1
        if columns % kind.block:
            raise self._malformed(
                f"rows of {columns:,} elements are no whole number of blocks of {kind.block}, "
                f"which {kind.name} has",
                name,
            )
        if offset % align:
            raise self._malformed(f"its data at {offset:,} is not aligned to {align} bytes", name)
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
            readable=kind.is_plain or (kind.name not in _UNDECODED and len(shape) > 1),
            role=Role.VALUES if kind.is_plain else Role.CODES,
        )

    def _check_places(self, tensors: Sequence[TensorInfo]) -> None:
        names: set[str] = set()
        end = 0
        for tensor in sorted(tensors, key=lambda t: (t.begin, t.end)):
            if tensor.name in names:
                raise self._malformed("it is there twice", tensor.name)
            if tensor.begin < end:
                raise self._malformed("its data overlaps the one before it", tensor.name)
            names.add(tensor.name)
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
    counts = ", ".join(f"{count:,} of {name}" for name, count in kinds.most_common())
    return QuantizationInfo(
        method="gguf",
        detail=(
            f"{len(codes):,} of {len(tensors):,} tensors hold GGUF blocks ({counts}): "
            f"{weights:,} weights at {bits:.2f} bits each, scales counted. Statistics are of the "
            f"decoded values."
        ),
        codes={t.name: CodeTensor("gguf", t.parameters) for t in codes},
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
