"""An open model: what its headers say, and its rows on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final, Protocol, Self

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.models.quoting import named, quoted
from qtui_core.models.recognise import QuantizationInfo
from qtui_core.models.tensors import TensorInfo, row_elements, rows_of

#: The most elements of a row that is read, as whole rows are held in memory. The widest rows of
#: models have some hundred thousand.
LONGEST_ROW: Final = 1 << 24


class TensorFile(Protocol):
    """Where the bytes of one file come from."""

    def read(self, begin: int, end: int) -> memoryview:
        """Bytes [begin, end) of the file. Raises ModelError when they cannot be had."""

    def close(self) -> None:
        """Releases open files and connections."""


@dataclass(frozen=True)
class ModelSource:
    """A model whose headers were read and whose values were not.

    Attributes:
        id: the model as it was asked for: hub id, path or "demo".
        origin: "demo", "folder", "file", "config" or "hub".
        location: where it was found: a path, or the address and commit on the hub.
        config: config.json, or None where there is none.
        tensors: by name, in natural order. Empty when there are no weights to read.
        quantization: what the weights are already quantized with, if anything.
        metadata: `__metadata__` of the files.
        commit: the commit on the hub everything is read from; None for local models.
        missing_weights: a sentence that says why there are no tensors; None when there are.
    """

    id: str
    origin: str
    location: str
    config: Mapping[str, Any] | None = None
    tensors: Mapping[str, TensorInfo] = field(default_factory=dict)
    quantization: QuantizationInfo | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    commit: str | None = None
    missing_weights: str | None = None
    files: Mapping[str, TensorFile] = field(default_factory=dict, repr=False, compare=False)

    @property
    def architecture(self) -> str | None:
        """Class name from the config ("LlamaForCausalLM"), else its model type."""
        if self.config is None:
            return None
        names = self.config.get("architectures")
        first = names[0] if isinstance(names, list) and names else None
        name = first if isinstance(first, str) else self.config.get("model_type")
        return named(name) if isinstance(name, str) else None

    @property
    def is_configuration(self) -> bool:
        """Whether it is a config.json alone, which a run gives random weights."""
        return self.origin == "config"

    @property
    def parameters(self) -> int:
        """Parameters of the model: packed codes count as what they unpack to, scales as 0."""
        return sum(t.parameters for t in self.tensors.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, scales too, headers not."""
        return sum(t.nbytes for t in self.tensors.values())

    @property
    def dtypes(self) -> dict[str, int]:
        """Parameters by stored dtype, most bytes first; sums to `parameters`."""
        nbytes, parameters = Counter[str](), Counter[str]()
        for t in self.tensors.values():
            nbytes[t.dtype] += t.nbytes
            parameters[t.dtype] += t.parameters
        return {d: parameters[d] for d in sorted(nbytes, key=lambda d: (-nbytes[d], d))}

    def tensor(self, name: str) -> TensorInfo:
        """The tensor of that name. Raises ModelError if there is none."""
        try:
            return self.tensors[name]
        except KeyError:
            raise ModelError(f"{quoted(self.id)} has no tensor {quoted(name)}.") from None

    def require_weights(self) -> None:
        """Raises ModelError, with the reason, when there are no tensors to read."""
        if not self.tensors:
            raise ModelError(self.missing_weights or f"{quoted(self.id)} has no tensors to read.")

    def read_rows(self, name: str, start: int, stop: int) -> memoryview:
        """Raw little-endian bytes of rows [start, stop), C order, read-only.

        Rows are those of `rows_of`: output channels; each element of a vector is a row, a
        scalar is one row.
        Local files are not copied: the view is of the mapped file. From the hub, only these
        bytes travel.

        Raises:
            ModelError: no such tensor, a dtype that is not read, rows of more than LONGEST_ROW
                elements, or the bytes cannot be had.
            ValueError: not 0 <= start <= stop <= rows.
        """
        info = self.tensor(name)
        if not info.readable:
            raise ModelError(
                f"Tensor {quoted(name)} is stored as {quoted(info.dtype)}, which qtui lists "
                f"but does not read."
            )
        if row_elements(info) > LONGEST_ROW:
            raise ModelError(
                f"Tensor {quoted(name)} has rows of {row_elements(info):,} elements, which is more "
                f"than any model has; the most that is read is {LONGEST_ROW:,}."
            )
        rows = rows_of(info)
        if not 0 <= start <= stop <= rows:
            raise ValueError(f"rows [{start}, {stop}) of a tensor of {rows} rows")
        begin, end = (info.begin + row * info.nbytes // max(1, rows) for row in (start, stop))
        return self.files[info.file].read(begin, end) if begin < end else memoryview(b"")

    def close(self) -> None:
        """Let go of files and connections. Rows already read stay valid."""
        for file in self.files.values():
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
