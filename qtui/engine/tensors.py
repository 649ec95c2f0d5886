"""The open model and its tensors, for the operations of the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from qtui_core.errors import ModelError
from qtui_core.job import IDLE, Job
from qtui_core.models import ModelSource, TensorInfo, open_model, row_elements, rows_of
from qtui_core.models.files.arrays import read_float32, to_float32
from qtui_core.models.files.local import LocalFile

# Every pass over a remote tensor would transfer its bytes again. So the bytes of the current tensor
# are kept, up to this size.
REMOTE_BYTES_KEPT = 2 << 30
# A transfer of a few megabytes costs little more than one of a few kilobytes.
REMOTE_STRIP_BYTES = 8 << 20


class OpenModels:
    """The open model. Opening another one releases it, and calls `forget`."""

    def __init__(self, forget: Callable[[], None]) -> None:
        self._forget = forget
        self._lock = threading.Lock()
        self._text: str | None = None
        self._source: ModelSource | None = None
        self._remote: RemoteRows | None = None

    def open(self, text: str, job: Job = IDLE) -> ModelSource:
        """Opens a model, even if it is open already. Raises ModelError, and Cancelled as `job`
        says."""
        source = open_model(text, job=job)
        with self._lock:
            # The old source is not closed, because a lane may still read from it.
            self._text, self._source, self._remote = text, source, None
        self._forget()
        return source

    def source(self, text: str) -> ModelSource:
        """The model; opens it if it is not open, as after a restart of the engine, or if a file of
        it was found to be changed."""
        with self._lock:
            found = self._source
            if found is not None and self._text == text and not _changed(found):
                return found
        return self.open(text)

    def tensor(self, text: str, name: str) -> OpenTensor:
        """A tensor of the model. Raises ModelError if qtui does not read its dtype."""
        source = self.source(text)
        info = source.tensor(name)
        if not info.readable:
            raise ModelError(f"{name} is stored as {info.dtype}, which qtui lists but cannot read.")
        remote = None
        if source.origin == "hub" and info.nbytes <= REMOTE_BYTES_KEPT:
            with self._lock:
                if self._remote is None or self._remote.info != info:
                    self._remote = RemoteRows(source, info)
                remote = self._remote
        return OpenTensor(source, info, remote)


def _changed(source: ModelSource) -> bool:
    return any(isinstance(file, LocalFile) and file.changed for file in source.files.values())


class OpenTensor:
    """A stored tensor, read by rows.

    Attributes:
        shape: (rows, columns) of the matrix as which it is read; (n,) for a vector and () for a
            scalar, which count as one row.
        key: its name.
    """

    def __init__(
        self, source: ModelSource, info: TensorInfo, remote: RemoteRows | None = None
    ) -> None:
        self.source = source
        self.info = info
        self.key = info.name
        self.shape = info.matrix if len(info.shape) >= 2 else info.shape
        self._remote = remote

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Rows [start, stop) of the matrix, float32 `[stop - start, columns]`; of a vector the
        elements [start, stop), float32 `[stop - start]`."""
        if self._remote is not None:
            values = self._remote.rows(start, stop)
        else:
            values = read_float32(self.source, self.info.name, start, stop)
        return values.reshape(-1) if len(self.shape) < 2 else values


class RemoteRows:
    """A remote tensor. Its bytes are fetched in strips and kept."""

    def __init__(self, source: ModelSource, info: TensorInfo) -> None:
        self.info = info
        self._source = source
        self._lock = threading.Lock()
        row_bytes = max(1, info.nbytes // max(1, rows_of(info)))
        self._height = max(1, REMOTE_STRIP_BYTES // row_bytes)
        self._strips: dict[int, memoryview] = {}

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        row_bytes = self.info.nbytes // max(1, rows_of(self.info))
        height = self._height
        parts = []
        for index in range(start // height, -(-stop // height)):
            first = index * height
            strip = self._strip(index)
            begin, end = max(start, first) - first, min(stop, first + height) - first
            parts.append(strip[begin * row_bytes : end * row_bytes])
        raw = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        if not raw.nbytes:
            return np.empty((stop - start, row_elements(self.info)), np.float32)
        return to_float32(self.info.dtype, raw).reshape(stop - start, -1)

    def _strip(self, index: int) -> memoryview:
        with self._lock:
            if index not in self._strips:
                first = index * self._height
                last = min(rows_of(self.info), first + self._height)
                self._strips[index] = self._source.read_rows(self.info.name, first, last)
            return self._strips[index]
