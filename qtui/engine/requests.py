"""What the engine is asked: a dataclass for each kind of question.

Its fields are the names that a request has on its line of JSON, and `qtui_core.codec` reads them.
One that is not there has its default; one of another type is refused before anything is computed.
No numpy here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qtui.engine.answers.outliers import By
from qtui_core.schemes.scheme import Scheme

#: The stored tensor, or what was captured of the module whose weight it is.
Source = Literal["weight", "input", "output"]


@dataclass(frozen=True)
class Injection:
    """`value` in the place of element (row, column), or of the whole column where `row` is
    None."""

    column: int
    value: float
    row: int | None = None

    PRINTED = ("row", "column", "value")


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """About a model, named as the user typed it."""

    model: str


@dataclass(frozen=True, kw_only=True)
class TensorRequest(ModelRequest):
    """About a tensor, or what was captured of the module whose weight it is; with an outlier put
    into it where `inject` says which."""

    tensor: str
    source: Source = "weight"
    inject: Injection | None = None


@dataclass(frozen=True, kw_only=True)
class HistogramRequest(TensorRequest):
    """`bins` of equal width from the smallest to the largest value."""

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
    """The same side by side; `resized` where they were brought to equal bits."""

    resized: bool = False


@dataclass(frozen=True, kw_only=True)
class PictureRequest(SchemesRequest):
    """A map of `rows` x `columns` cells at most. `kind` is a MapKind and `pooling` a Pooling, by
    their names; `window` is (first row, end, first column, end), None for the whole tensor."""

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
    """How outliers are detected. `limit` is in standard deviations, in the unit of the tensor, or
    how many times the median column; None takes what is usual."""

    detection: By = "sigma"
    limit: float | None = None


@dataclass(frozen=True, kw_only=True)
class AttributionRequest(SchemeRequest):
    """Where the error of a scheme is; `tries` columns are kept in 16 bits one by one. Outliers are
    detected as in OutliersRequest."""

    tries: int
    detection: By = "sigma"
    limit: float | None = None


@dataclass(frozen=True, kw_only=True)
class DecompositionRequest(SchemeRequest):
    """LLM.int8() at this threshold among others; None takes what is usual."""

    threshold: float | None = None


@dataclass(frozen=True, kw_only=True)
class CaptureRequest(ModelRequest):
    """The modules of the weights `tensors`, while the model reads `prompt` or the text of `file`;
    the built-in text without either."""

    tensors: tuple[str, ...]
    prompt: str | None = None
    file: str | None = None


@dataclass(frozen=True, kw_only=True)
class RangesRequest(SchemeRequest):
    """One side of a captured module."""

    source: Source = "input"


@dataclass(frozen=True, kw_only=True)
class OutputsRequest(SchemesRequest):
    """The output of a captured layer; the sentence is about scheme number `active`."""

    active: int = 0


@dataclass(frozen=True, kw_only=True)
class LayersRequest(ModelRequest):
    """The outputs of all linear layers whose weights are among `tensors`, while the model reads
    the text of `file`. `full` reads every weight, else a sample."""

    tensors: tuple[str, ...]
    schemes: tuple[Scheme, ...]
    file: str
    full: bool = False
