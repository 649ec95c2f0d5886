"""A model's tensors, and what a scheme does to one of them."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from qtui_core.answers.tensors import OutlierReport, TensorStatistics
from qtui_core.dataclass import dataclass
from qtui_core.models.quoting import printable
from qtui_core.quantities import format_bytes, format_count
from qtui_core.telemetry.device import GpuReading


class TensorEntry(NamedTuple):
    """A line of the list. `elements` are those stored; `readable` is False for a dtype that
    is listed and not read; `quantizable` is what a quantization library would quantize; `rows`
    are those of the matrix that pictures are of."""

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
        """The shape, and of more dimensions than two the matrix it is read as."""
        text = times.join(f"{size:,}" for size in self.shape) or "scalar"
        if len(self.shape) <= 2:
            return text
        return f"{text} read as {times.join(f'{size:,}' for size in self.matrix)}"


@dataclass(frozen=True)
class ModelIndex:
    """An open model: what its headers say, or its config where there are no weights: None for
    `parameters` that this does not tell. `note` is a sentence about weights that are missing or
    already quantized, empty otherwise."""

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
        sizes.append(format_bytes(self.nbytes) if self.nbytes else "no weights")
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

    devices: tuple[GpuReading, ...]


@dataclass(frozen=True)
class TensorNumbers:
    """Statistics of all elements of a tensor, and its outliers: of the columns that hold some the
    first."""

    statistics: TensorStatistics
    outliers: OutlierReport


@dataclass(frozen=True)
class Element:
    """One element under a scheme. `scale` is None for a cast, `zero_point` if there is none;
    `where` says which elements share the scale; `levels` are the values possible in that group."""

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
        """The value as the Formats panel takes it; a float for what no Fraction holds."""
        if not math.isfinite(self.value) or (self.value == 0 and math.copysign(1, self.value) < 0):
            return self.value
        return Fraction(self.value)


@dataclass(frozen=True)
class Explanation:
    """A sentence about what was measured."""

    sentence: str


@dataclass(frozen=True)
class Ranked:
    """A tensor under a scheme, from a sample of its rows."""

    name: str
    sqnr_db: float | None
    overflowed: int


@dataclass(frozen=True)
class AllRanked:
    """Whether any tensor was measured from a sample."""

    sampled: bool
