"""The result of an inspection, as data. No numpy: an inspection of headers alone gives one too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qtui_core.codec import or_null
from qtui_core.dataclass import dataclass
from qtui_core.models import TensorInfo

if TYPE_CHECKING:
    from qtui_core.quant import ErrorReport, OutlierReport, TensorStatistics


@dataclass(frozen=True)
class DtypeCount:
    """How much of a checkpoint is stored in one dtype (with safetensors' name)."""

    dtype: str
    tensors: int
    parameters: int
    nbytes: int

    PRINTED = ("tensors", "parameters", ("bytes", "nbytes"))


@dataclass(frozen=True)
class Census:
    """What the headers say. If names and shapes tell, `parameters` counts the weights that packed
    codes stand for, and no scales; `quantization` says how the codes are stored."""

    model: str
    origin: str
    location: str
    architecture: str | None
    parameters: int
    nbytes: int
    dtypes: tuple[DtypeCount, ...]
    quantization: str | None

    PRINTED = (
        ("id", "model"),
        ("source", "origin"),
        "location",
        "architecture",
        "parameters",
        ("bytes", "nbytes"),
        ("dtypes", lambda census: {count.dtype: count for count in census.dtypes}),
        "quantization",
    )


@dataclass(frozen=True)
class TensorReport:
    """One tensor. `statistics` is None if no values were read; `errors` is empty if schemes leave
    the tensor as it is. Rows in `outliers` are rows of the whole tensor, not of the sample."""

    info: TensorInfo
    sampled_parameters: int
    statistics: TensorStatistics | None = None
    outliers: OutlierReport | None = None
    errors: tuple[ErrorReport, ...] = ()

    PRINTED = (
        ("name", "info.name"),
        ("shape", "info.shape"),
        ("read_as", "info.reading"),
        ("matrix", "info.matrix"),
        ("dtype", "info.dtype"),
        ("parameters", "info.parameters"),
        ("bytes", "info.nbytes"),
        *("sampled_parameters", "statistics", "outliers", "errors"),
    )

    @property
    def energy(self) -> float:
        """The sum of squares of the whole tensor, estimated from its statistics."""
        return self.statistics.mean_square * self.info.elements if self.statistics else 0.0


@dataclass(frozen=True)
class SchemeTotal:
    """A scheme applied to every matrix of the model, with everything else kept as stored.

    `bits_per_parameter` and `nbytes` are those of the whole model, with scales and zero points.
    `relative_mse` is the squared error of all matrices over their squared values, where a sampled
    tensor weighs as much as the whole; None if nothing was measured.

    `saturated` counts values beyond the largest number of the format, which became that number,
    among those that were read.
    """

    scheme: str
    bits_per_parameter: float
    nbytes: int
    relative_mse: float | None
    sqnr_db: float | None
    gaussian_sqnr_db: float | None
    worst_tensor: str | None
    saturated: int = 0

    PRINTED = (
        *("scheme", "bits_per_parameter", ("bytes", "nbytes"), "relative_mse", "sqnr_db"),
        *("gaussian_sqnr_db", "worst_tensor", "saturated"),
    )


@dataclass(frozen=True)
class Misshapen:
    """A tensor whose shape differs from the one that the config implies."""

    name: str
    shape: tuple[int, ...]
    implied: tuple[int, ...]

    PRINTED = ("name", "shape", ("implied_shape", "implied"))


@dataclass(frozen=True)
class Completeness:
    """The tensors of a checkpoint compared with those that its config.json implies.

    Attributes:
        architecture: the transformers class whose parameters are implied; None if nothing was
            checked, and then `unchecked` says why.
        implied: how many tensors are implied, in the spelling of this checkpoint.
        missing: implied tensors that are not stored. A tied head may be absent.
        partly_of: the class in config.json if it has more than the implied parameters.
    """

    architecture: str | None = None
    implied: int = 0
    missing: tuple[str, ...] = ()
    misshapen: tuple[Misshapen, ...] = ()
    unchecked: str = ""
    partly_of: str = ""

    PRINTED = (
        ("checked", lambda complete: not complete.unchecked),
        ("not_checked_because", or_null("unchecked")),
        "architecture",
        ("partly_of", or_null("partly_of")),
        "implied",
        "missing",
        "misshapen",
    )


@dataclass(frozen=True)
class Inspection:
    """A census and, if values were read, what each scheme does to them. The report of a command
    puts its memory estimate into `memory`."""

    census: Census
    tensors: tuple[TensorReport, ...]
    schemes: tuple[SchemeTotal, ...]
    measured: bool
    sample: str
    conclusion: str
    completeness: Completeness | None = None

    PRINTED = (
        ("model", "census"),
        "sample",
        "tensors",
        "schemes",
        ("memory", lambda inspection: None),
        "completeness",
    )
