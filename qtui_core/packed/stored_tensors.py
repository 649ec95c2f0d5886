"""The stored tensors that make up one quantized weight, as numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.models import ModelSource, TensorInfo, row_elements, rows_of
from qtui_core.models.files.arrays import NUMPY, read_float32
from qtui_core.models.quoting import quoted
from qtui_core.models.recognise import quantization_config

Array = NDArray[Any]
Float32 = NDArray[np.float32]


class Decoder(Protocol):
    """Decodes rows of a weight seen as a matrix: float32 `[stop - start, columns]`. Raises
    ModelError if the stored tensors contradict each other, UsageError if a library is missing."""

    def rows(self, start: int, stop: int) -> Float32: ...


@dataclass(frozen=True)
class Description:
    """What is known of a quantized weight before its codes are read.

    Attributes:
        shape: the shape of the decoded weight.
        method: how it is stored, for people: "GPTQ 4 bits group128".
        scheme: qtui's scheme that rounds to the same levels without calibration; None if there
            is none.
    """

    shape: tuple[int, ...]
    method: str
    scheme: str | None


class StoredTensors:
    """The stored tensors of one weight, each read when it is first needed and then kept. Those of
    a local file are views of the mapped file and take no memory.

    Attributes:
        source, tensors: the model and its tensors by name.
        code: the name of the tensor of codes.
        shape: the shape of the decoded weight; () while it is described.
    """

    def __init__(self, source: ModelSource, code: str, shape: tuple[int, ...] = ()) -> None:
        self.source, self.tensors = source, source.tensors
        self.code = code
        self.shape = shape
        self._kept: dict[str, Array] = {}

    def info(self, name: str) -> TensorInfo:
        """The stored tensor of that name. Raises ModelError, which names the weight, if it is
        missing."""
        info = self.tensors.get(name)
        if info is None:
            raise self.fault(f"the tensor {quoted(name)}, which it is decoded with, is missing")
        return info

    def integers(self, name: str) -> Array:
        """A stored tensor of integers in its own shape and dtype; of 8-bit floats and E8M0 scales,
        their bytes. Read-only."""
        info = self.info(name)
        stored = "u1" if info.dtype.startswith("F8_") else NUMPY.get(info.dtype, "float")
        if "f" in stored:
            raise self.fault(f"{quoted(name)} holds {info.dtype} where integers are expected")
        return self.raw(name).view(stored).reshape(info.shape)

    def words(self, name: str) -> Array:
        """A stored matrix of 32-bit words with packed codes, `[n, m]`. Read-only."""
        info = self.info(name)
        if info.dtype not in ("I32", "U32") or len(info.shape) != 2:
            raise self.fault(
                f"{quoted(name)} holds {info.dtype} of shape {list(info.shape)} where a matrix of "
                f"32-bit words is expected"
            )
        return self.integers(name)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The stored bytes of a tensor of any dtype, `[nbytes]`."""
        info = self.info(name)
        if name not in self._kept:
            raw = self.source.read_rows(name, 0, rows_of(info))
            self._kept[name] = np.frombuffer(raw, np.uint8)
        return self._kept[name]

    def floats(self, name: str) -> Float32:
        """A stored tensor as float32 in its own shape."""
        info = self.info(name)
        key = f"float32 {name}"
        if key not in self._kept:
            self._kept[key] = read_float32(self.source, name).reshape(info.shape)
        return self._kept[key]

    def float_rows(self, name: str, start: int, stop: int) -> Float32:
        """Rows [start, stop) of a stored tensor as float32 `[stop - start, columns]`."""
        return read_float32(self.source, name, start, stop).reshape(
            stop - start, row_elements(self.info(name))
        )

    def matrix(self) -> tuple[int, int]:
        """The stored shape of the codes. Raises ModelError if they are not a matrix."""
        shape = self.tensors[self.code].shape
        if len(shape) != 2:
            raise self.fault(f"its codes are of shape {list(shape)}, not a matrix")
        return shape[0], shape[1]

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the config says of its quantization, empty where it says nothing."""
        return quantization_config(self.source.config) or {}

    def fault(self, sentence: str) -> ModelError:
        """The error for a weight that cannot be decoded. Its sentence begins with the weight."""
        return cannot_decode(self.source, self.code, sentence)


def cannot_decode(source: ModelSource, code: str, sentence: str) -> ModelError:
    """The error for a weight that cannot be decoded. Its sentence begins with the weight."""
    return ModelError(f"{quoted(code)} of {quoted(source.id)}: {sentence}.")
