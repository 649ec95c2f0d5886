"""Answers about a model's tensors, and about one of them under a scheme."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final, NamedTuple

from qtui_core.answers import OutlierReport, TensorStatistics
from qtui_core.dataclass import dataclass
from qtui_core.models.quoting import printable
from qtui_core.quantities import format_bytes, format_count
from qtui_core.telemetry.readings import DeviceReading

#: The end of the headline of a model of which there is only the configuration.
NO_WEIGHTS: Final = "no weights"


class TensorEntry(NamedTuple):
    """A line of the list of tensors.

    Attributes:
        elements: elements as stored.
        readable: whether qtui reads its dtype; others are only listed.
        quantizable: whether a quantization library would quantize it.
        rows: rows of the matrix as which the tensor is drawn.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    elements: int
    nbytes: int
    readable: bool
    quantizable: bool
    rows: int

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows, self.elements // max(1, self.rows)

    def shape_text(self, times: str) -> str:
        """The shape; with more than two dimensions also the matrix as which the tensor is read."""
        text = times.join(f"{size:,}" for size in self.shape) or "scalar"
        if len(self.shape) <= 2:
            return text
        return f"{text} read as {times.join(f'{size:,}' for size in self.matrix)}"


@dataclass(frozen=True)
class ModelIndex:
    """An open model, from the headers of its weights, or from its config if there are none.

    Attributes:
        parameters: None if the config does not determine them.
        note: a sentence about weights that are missing or already quantized, else empty.
    """

    id: str
    origin: str
    architecture: str | None
    parameters: int | None
    nbytes: int
    note: str
    tensors: tuple[TensorEntry, ...]

    @property
    def headline(self) -> str:
        """The model in a few words."""
        architecture = f"{self.architecture}  " if self.architecture else ""
        sizes = []
        if self.parameters is not None:
            sizes.append(f"{format_count(self.parameters)} parameters")
        sizes.append(format_bytes(self.nbytes) if self.nbytes else NO_WEIGHTS)
        return f"{printable(self.id)}  {architecture}{', '.join(sizes)}"

    @property
    def first_choice(self) -> TensorEntry:
        """A weight that a quantization library would quantize (these leave out the embedding and
        the output layer); any tensor if there is none."""
        good = [entry for entry in self.tensors if entry.quantizable]
        inner = [e for e in good if "embed" not in e.name and "lm_head" not in e.name]
        return [*inner, *good, *self.tensors][0]


@dataclass(frozen=True)
class Devices:
    """The GPUs of this machine."""

    devices: tuple[DeviceReading, ...]


@dataclass(frozen=True)
class TensorNumbers:
    """Statistics of a tensor and its outliers. Of the columns with outliers only the first are
    listed."""

    statistics: TensorStatistics
    outliers: OutlierReport


@dataclass(frozen=True)
class Element:
    """One element under a scheme.

    Attributes:
        scale, zero_point: of its group; None if the scheme has none.
        where: which elements share the scale, in words.
        levels: the values that the group can represent, ascending.
    """

    row: int
    column: int
    value: float
    quantized: float
    error: float
    scale: float | None
    zero_point: float | None
    where: str
    levels: tuple[float, ...]

    @property
    def exact(self) -> Fraction | float:
        """The value for the Formats panel: a Fraction, or a float if it is NaN or infinite."""
        if not math.isfinite(self.value) or (self.value == 0 and math.copysign(1, self.value) < 0):
            return self.value
        return Fraction(self.value)


@dataclass(frozen=True)
class Explanation:
    """A sentence about measured errors."""

    sentence: str


@dataclass(frozen=True)
class Ranked:
    """A tensor under a scheme, measured on a sample of its rows. The SQNR is None if there is no
    error, and NaN if no element is finite."""

    name: str
    sqnr_db: float | None


@dataclass(frozen=True)
class AllRanked:
    """Whether any tensor was measured from a sample."""

    sampled: bool
