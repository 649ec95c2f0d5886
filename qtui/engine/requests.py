"""The requests of the engine, one dataclass for each kind.

`qtui_core.codec` reads them from the line of JSON. A missing field has its default, and a value of
the wrong type is refused before anything is computed. Nothing here imports numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qtui.engine.answers.outliers import By
from qtui_core.evaluation.settings import EvaluationSettings
from qtui_core.schemes.scheme import Scheme

#: The stored tensor, or the captured input or output of the module with that weight.
Source = Literal["weight", "input", "output"]


@dataclass(frozen=True)
class Injection:
    """Replaces element (row, column), or the whole column if `row` is None, by `value`."""

    column: int
    value: float
    row: int | None = None

    PRINTED = ("row", "column", "value")


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """A request about a model, named as the user typed it."""

    model: str


@dataclass(frozen=True, kw_only=True)
class TensorRequest(ModelRequest):
    """A request about a stored tensor, or about the captured input or output of the module with
    that weight; with the outlier `inject`, if there is one."""

    tensor: str
    source: Source = "weight"
    inject: Injection | None = None


@dataclass(frozen=True, kw_only=True)
class HistogramRequest(TensorRequest):
    """A histogram with `bins` of equal width from the smallest to the largest value."""

    bins: int


@dataclass(frozen=True, kw_only=True)
class SchemeRequest(TensorRequest):
    """A tensor under a scheme."""

    scheme: Scheme


@dataclass(frozen=True, kw_only=True)
class ElementRequest(SchemeRequest):
    """One element under a scheme, by its place in the matrix that the tensor is read as."""

    row: int
    column: int


@dataclass(frozen=True, kw_only=True)
class SchemesRequest(TensorRequest):
    """A tensor under several schemes."""

    schemes: tuple[Scheme, ...]


@dataclass(frozen=True, kw_only=True)
class CodesRequest(SchemesRequest):
    """The same side by side. `resized` says that they have been resized to equal bits."""

    resized: bool = False


@dataclass(frozen=True, kw_only=True)
class PictureRequest(SchemesRequest):
    """A map of at most `rows` x `columns` cells. `kind` and `pooling` are names of a MapKind and a
    Pooling. `window` is (first row, end row, first column, end column), None for the whole
    tensor."""

    rows: int
    columns: int
    kind: str = "error"
    pooling: str | None = None
    window: tuple[int, int, int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class RankRequest(ModelRequest):
    """All tensors of a model under a scheme."""

    scheme: Scheme


@dataclass(frozen=True, kw_only=True)
class BudgetRequest:
    """Schemes for a tensor of a shape."""

    schemes: tuple[Scheme, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class OutliersRequest(TensorRequest):
    """How outliers are detected. `limit` is in standard deviations, a magnitude in the unit of the
    tensor, or a multiple of the median column, by `detection`; None means the default."""

    detection: By = "sigma"
    limit: float | None = None


@dataclass(frozen=True, kw_only=True)
class AttributionRequest(SchemeRequest):
    """Where the error of a scheme lies. `tries` is how many columns are tried one by one in 16
    bits. Outliers are detected as in OutliersRequest."""

    tries: int
    detection: By = "sigma"
    limit: float | None = None


@dataclass(frozen=True, kw_only=True)
class DecompositionRequest(SchemeRequest):
    """LLM.int8() decomposition at this threshold and others; None means the default."""

    threshold: float | None = None


@dataclass(frozen=True, kw_only=True)
class CaptureRequest(ModelRequest):
    """The modules with the weights `tensors`, while the model reads `prompt`, the text of `file`,
    or without either the built-in text."""

    tensors: tuple[str, ...]
    prompt: str | None = None
    file: str | None = None


@dataclass(frozen=True, kw_only=True)
class RangesRequest(SchemeRequest):
    """One side of a captured module."""

    source: Source = "input"


@dataclass(frozen=True, kw_only=True)
class OutputsRequest(SchemesRequest):
    """The output of a captured layer. The sentence is about scheme number `active`, from 0."""

    active: int = 0


@dataclass(frozen=True, kw_only=True)
class PredictionsRequest(ModelRequest):
    """What each of `tensors` under each of `schemes` does to the predictions of the model, measured
    or estimated from gradients, on the text of `file` or a built-in one."""

    by: Literal["fisher", "kl"]
    tensors: tuple[str, ...]
    schemes: tuple[Scheme, ...]
    file: str | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest(ModelRequest):
    """A model and its candidates on a text. `done` are the parts that need not be computed again,
    as (number of the batch, number of the candidate)."""

    settings: EvaluationSettings
    done: tuple[tuple[int, int], ...] = ()
