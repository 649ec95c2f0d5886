"""The result of an inspection, as data. No numpy: a header-only census is one of these too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qtui_core.dataclass import dataclass
from qtui_core.models import TensorInfo

if TYPE_CHECKING:
    from qtui_core.quant import ErrorReport, OutlierReport, TensorStatistics


@dataclass(frozen=True)
class DtypeCount:
    """How much of a checkpoint is stored in one dtype (safetensors' name of it)."""

    dtype: str
    tensors: int
    parameters: int
    nbytes: int


@dataclass(frozen=True)
class Census:
    """What the headers alone say. `parameters` counts what packed codes stand for, and scales
    as none, where names and shapes tell; `quantization` says how the codes are stored."""

    model: str
    origin: str
    location: str
    architecture: str | None
    parameters: int
    nbytes: int
    dtypes: tuple[DtypeCount, ...]
    quantization: str | None


@dataclass(frozen=True)
class TensorReport:
    """One tensor. `statistics` is None where values were not read; `errors` is empty where
    a scheme would leave the tensor alone. Rows in `outliers` are rows of the whole tensor
    and not of the sample."""

    info: TensorInfo
    sampled_parameters: int
    statistics: TensorStatistics | None = None
    outliers: OutlierReport | None = None
    errors: tuple[ErrorReport, ...] = ()


@dataclass(frozen=True)
class SchemeTotal:
    """A scheme applied to every matrix of the model, everything else kept as stored.

    `bits_per_parameter` and `nbytes` are those of the whole model, scales and zero points
    counted. `relative_mse` is the squared error of all matrices over their squared values,
    a sampled tensor weighing as its whole; None when nothing was measured.
    """

    scheme: str
    bits_per_parameter: float
    nbytes: int
    relative_mse: float | None
    sqnr_db: float | None
    gaussian_sqnr_db: float | None
    worst_tensor: str | None


@dataclass(frozen=True)
class Inspection:
    """A census, and where values were read what each scheme does to them."""

    census: Census
    tensors: tuple[TensorReport, ...]
    schemes: tuple[SchemeTotal, ...]
    measured: bool
    sample: str
    conclusion: str
