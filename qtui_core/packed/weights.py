"""The weights of a model's modules, however they are stored."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.models import ModelSource, Reading, Role, TensorInfo, row_elements, rows_of
from qtui_core.models.files.arrays import RowReader
from qtui_core.models.files.gguf import ggml_type
from qtui_core.models.quoting import quoted
from qtui_core.models.recognise import declared_method, name_of_weight, quantization_config
from qtui_core.packed import bitsandbytes, compressed, integers, scaled
from qtui_core.packed.stored_tensors import (
    Decoder,
    Description,
    Float32,
    StoredTensors,
    cannot_decode,
)

Describe = Callable[[StoredTensors], Description]

#: For each method in `CodeTensor.method`: the function that describes a weight, and the
#: class that decodes it.
_METHODS: dict[str, tuple[Describe, Callable[[StoredTensors], Decoder]]] = {
    "bitsandbytes-nf4": (bitsandbytes.describe_4bit, bitsandbytes.FourBitDecoder),
    "bitsandbytes-fp4": (bitsandbytes.describe_4bit, bitsandbytes.FourBitDecoder),
    "bitsandbytes-int8": (bitsandbytes.describe_int8, bitsandbytes.Int8Decoder),
    "gptq": (integers.describe_gptq, integers.GptqDecoder),
    "awq": (integers.describe_awq, integers.AwqDecoder),
    "compressed-tensors": (compressed.describe_compressed, compressed.CompressedDecoder),
    "fp8": (scaled.describe_scaled, scaled.ScaledDecoder),
    "int8": (scaled.describe_scaled, scaled.ScaledDecoder),
    "mxfp4": (scaled.describe_mxfp4, scaled.Mxfp4Decoder),
    "nvfp4": (scaled.describe_nvfp4, scaled.Nvfp4Decoder),
}

#: The scheme closest to each type of GGUF block. K types search for good scales and round them to
#: 6 or 8 bits; the scales of the scheme are not rounded.
_GGUF_SCHEMES = {
    "Q4_0": "int4:group32:signed",
    "Q4_1": "int4:group32:asym",
    "Q5_0": "int5:group32:signed",
    "Q5_1": "int5:group32:asym",
    "Q8_0": "int8:group32",
    "Q2_K": "int2:group16:asym",
    "Q3_K": "int3:group16:signed",
    "Q4_K": "int4:group32:asym",
    "Q5_K": "int5:group32:asym",
    "Q6_K": "int6:group16:signed",
    "MXFP4": "mxfp4",
}

#: Concurrent small reads while weights of a remote model are described.
_REMOTE_READS = 8


@dataclass(frozen=True)
class LogicalWeight:
    """A weight of a module, however it is stored.

    Attributes:
        name: its name in a model that is not quantized.
        shape: its shape when decoded: [out, in] for a matrix.
        stored: the name of the tensor with its values or codes.
        nbytes: all bytes that it takes, with scales and zero points.
        method: how it is stored, for people.
        kind: the method's name in `CodeTensor.method`; "" for values that are not packed.
        scheme: the scheme that rounds to the same levels without calibration, if there is one.
        fault: a sentence that says why its values cannot be read; None if they can.
        stacked: as `TensorInfo.stacked`.
    """

    name: str
    shape: tuple[int, ...]
    stored: str
    nbytes: int
    method: str
    kind: str = ""
    scheme: str | None = None
    fault: str | None = None
    stacked: bool | None = None

    @property
    def quantized(self) -> bool:
        return self.kind != ""

    @property
    def parameters(self) -> int:
        return self.info.elements

    @property
    def bits_per_parameter(self) -> float:
        return 8 * self.nbytes / self.parameters if self.parameters else 0.0

    @property
    def info(self) -> TensorInfo:
        """The decoded weight described as a tensor."""
        readable, stacked = self.fault is None, self.stacked
        return TensorInfo(
            self.name, "F32", self.shape, 0, 0, "", 0, 0, readable=readable, stacked=stacked
        )


class WeightReader:
    """Reads rows of one weight as float32.

    Attributes:
        shape: (rows, elements of a row), as `rows_of` and `row_elements` count them.
    """

    def __init__(self, weight: LogicalWeight, decoder: Decoder) -> None:
        self.weight = weight
        self.shape = (rows_of(weight.info), row_elements(weight.info))
        self._decoder = decoder

    def rows(self, start: int, stop: int) -> Float32:
        """Rows [start, stop), float32 `[stop - start, shape[1]]`.

        Raises:
            ModelError: the stored tensors contradict each other.
            UsageError: the library that decodes them is not installed.
        """
        if stop <= start or not self.shape[1]:
            return np.empty((max(0, stop - start), self.shape[1]), np.float32)
        # Products beyond float32 become infinite, which is counted where values are measured.
        with np.errstate(over="ignore", invalid="ignore"):
            return self._decoder.rows(start, stop)


def logical_weights(source: ModelSource) -> dict[str, LogicalWeight]:
    """The weights of a model by name, in its order. Scales and zero points are part of their
    weights and are not listed.

    Reads the few bytes that tell the shapes of packed weights. A weight that qtui cannot decode,
    or whose tensors do not fit together, is listed with its `fault` and its shape as stored.

    Raises:
        ModelError: two weights have one name.
    """
    listed = [info for info in source.tensors.values() if info.role is not Role.SCALES]

    def describe(info: TensorInfo) -> LogicalWeight:
        if info.role is not Role.CODES:
            return _plain(source, info)
        try:
            return _packed(source, info)
        except ModelError as error:
            name = name_of_weight(info.name)
            return replace(_plain(source, info), name=name, kind="unknown", fault=str(error))

    if source.origin == "hub":
        with ThreadPoolExecutor(_REMOTE_READS, thread_name_prefix="describe") as pool:
            weights = list(pool.map(describe, listed))
    else:
        weights = [describe(info) for info in listed]
    result: dict[str, LogicalWeight] = {}
    for weight in weights:
        other = result.setdefault(weight.name, weight)
        if other is not weight:
            raise ModelError(
                f"{quoted(source.id)} stores {quoted(weight.name)} twice: as "
                f"{quoted(other.stored)} and as {quoted(weight.stored)}."
            )
    return result


def open_weight(source: ModelSource, weight: LogicalWeight) -> WeightReader:
    """A reader for one weight of `source`. Raises what `WeightReader.rows` raises."""
    if weight.fault is not None:
        raise ModelError(weight.fault)
    if weight.kind not in _METHODS:
        return WeightReader(weight, RowReader(source, weight.stored))
    parts = StoredTensors(source, weight.stored, weight.shape)
    return WeightReader(weight, _METHODS[weight.kind][1](parts))


def _plain(source: ModelSource, info: TensorInfo) -> LogicalWeight:
    stored = f"it is stored as {info.dtype}, which qtui lists but does not read"
    fault = None if info.readable else str(cannot_decode(source, info.name, stored))
    stacked = info.reading is Reading.STACK
    return LogicalWeight(
        info.name, info.shape, info.name, info.nbytes, info.dtype, fault=fault, stacked=stacked
    )


def _packed(source: ModelSource, info: TensorInfo) -> LogicalWeight:
    if ggml_type(info.dtype) is not None:
        return replace(
            _plain(source, info),
            method=f"GGUF {info.dtype}",
            kind="gguf",
            scheme=_GGUF_SCHEMES.get(info.dtype),
        )
    assert source.quantization is not None, "codes without a quantization"
    code = source.quantization.codes[info.name]
    method = code.method
    settings = quantization_config(source.config)
    if method in ("fp8", "int8") and declared_method(settings) == "compressed-tensors":
        method = "compressed-tensors"
    if method not in _METHODS or len(info.shape) < 2:
        stored = f"qtui does not decode {method} of shape {info.shape}"
        raise cannot_decode(source, info.name, stored)
    described = _METHODS[method][0](StoredTensors(source, info.name))
    return LogicalWeight(
        name=name_of_weight(info.name),
        shape=described.shape,
        stored=info.name,
        nbytes=info.nbytes + sum(source.tensors[n].nbytes for n in set(code.companions)),
        method=described.method,
        kind=method,
        scheme=described.scheme,
        stacked=len(described.shape) == 3,
    )
