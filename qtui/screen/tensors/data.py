"""What the engine answers, typed, for the Quantize panel. No numpy here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, TypeVar

from qtui.report.numbers import format_bytes, format_count
from qtui.screen.tensors.list import TensorEntry
from qtui_core.dataclass import dataclass
from qtui_core.models.quoting import printable

Record = TypeVar("Record")


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

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> ModelIndex:
        tensors = tuple(
            TensorEntry(name, dtype, tuple(shape), *rest)
            for name, dtype, shape, *rest in data["tensors"]
        )
        return build(cls, {**data, "tensors": tensors})

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
        """A weight that a quantization library would quantize: these leave the embedding and
        the output layer alone. Any tensor where there is none."""
        good = [entry for entry in self.tensors if entry.quantizable]
        inner = [e for e in good if "embed" not in e.name and "lm_head" not in e.name]
        return [*inner, *good, *self.tensors][0]


@dataclass(frozen=True)
class TensorNumbers:
    """Statistics of all elements of a tensor; floats are over the finite ones. None where
    there is nothing to compute from. A normal distribution has kurtosis 3."""

    count: int
    nan: int
    inf: int
    zeros: int
    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    absmax: float | None
    kurtosis: float | None
    outliers: int
    outlier_share: float
    outlier_columns: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ErrorNumbers:
    """What a scheme does to a tensor, beside what it would do to a Gaussian one."""

    bits_per_parameter: float
    bytes: int
    saturated: int
    sqnr_db: float | None
    gaussian_sqnr_db: float | None
    relative_mse: float | None
    gaussian_relative_mse: float | None
    max_abs_error: float | None
    overflowed: int = 0
    outlier_columns: int = 0


@dataclass(frozen=True)
class Element:
    """One element under a scheme. `scale` is None for a cast, `zero_point` where there is
    none; `where` says who shares the scale; `levels` are the values that group can have."""

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


def build(record: type[Record], data: Mapping[str, Any]) -> Record:
    """The dataclass from the keys it has; others are left out."""
    names = [field.name for field in dataclasses.fields(record)]  # type: ignore[arg-type]
    return record(**{name: data[name] for name in names})
