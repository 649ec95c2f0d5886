"""The result of an inspection, as data. No numpy: a header-only census is one of these too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qtui_core.codec import or_null
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

    PRINTED = ("tensors", "parameters", ("bytes", "nbytes"))


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

    PRINTED = (
        ("id", "model"),
        ("source", "origin"),
        "location",
        "architecture",
        "parameters",
        ("bytes", "nbytes"),
        ("dtypes", lambda census: {each.dtype: each for each in census.dtypes}),
        "quantization",
    )


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

    PRINTED = (
        ("name", "info.name"),
        ("shape", "info.shape"),
        ("read_as", "info.reading"),
        ("matrix", "info.matrix"),
        ("dtype", "info.dtype"),
        ("parameters", "info.parameters"),
        ("bytes", "info.nbytes"),
        "sampled_parameters",
        "statistics",
        "outliers",
        "errors",
    )

    @property
    def energy(self) -> float:
        """The sum of squares of the whole tensor, as its statistics estimate it."""
        return self.statistics.mean_square * self.info.elements if self.statistics else 0.0


@dataclass(frozen=True)
class SchemeTotal:
    """A scheme applied to every matrix of the model, everything else kept as stored.

    `bits_per_parameter` and `nbytes` are those of the whole model, scales and zero points
    counted. `relative_mse` is the squared error of all matrices over their squared values,
    a sampled tensor weighing as its whole; None when nothing was measured.

    `saturated` and `overflowed` count values of what was read that lie beyond the largest number
    of the format: those that became it, and those that became infinite or NaN. The latter are in
    no error above.
    """

    scheme: str
    bits_per_parameter: float
    nbytes: int
    relative_mse: float | None
    sqnr_db: float | None
    gaussian_sqnr_db: float | None
    worst_tensor: str | None
    saturated: int = 0
    overflowed: int = 0

    PRINTED = (
        "scheme",
        "bits_per_parameter",
        ("bytes", "nbytes"),
        "relative_mse",
        "sqnr_db",
        "gaussian_sqnr_db",
        "worst_tensor",
        "saturated",
        "overflowed",
    )


@dataclass(frozen=True)
class Misshapen:
    """A tensor whose shape is not the one that the config implies."""

    name: str
    shape: tuple[int, ...]
    implied: tuple[int, ...]

    PRINTED = ("name", "shape", ("implied_shape", "implied"))


@dataclass(frozen=True)
class Completeness:
    """The tensors of a checkpoint beside those that its config.json implies.

    Attributes:
        architecture: the class of transformers whose parameters are implied; None where nothing
            was checked, and `unchecked` says why.
        implied: how many tensors are, spelled as in this checkpoint.
        missing: of them those that are not there. A tied head may be absent.
        unexpected: those that are there and not implied, buffers that classes compute anew left
            out. Empty too where `partly_of` names a class that has more than what is implied.
    """

    architecture: str | None = None
    implied: int = 0
    missing: tuple[str, ...] = ()
    misshapen: tuple[Misshapen, ...] = ()
    unexpected: tuple[str, ...] = ()
    unchecked: str = ""
    partly_of: str = ""

    PRINTED = (
        ("checked", lambda found: not found.unchecked),
        ("not_checked_because", or_null("unchecked")),
        "architecture",
        ("partly_of", or_null("partly_of")),
        "implied",
        "missing",
        "misshapen",
        "unexpected",
    )


@dataclass(frozen=True)
class Inspection:
    """A census, and where values were read what each scheme does to them. The report of a command
    puts its estimate in the place of `memory`."""

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
