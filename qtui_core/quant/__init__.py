"""What a quantization scheme does to a tensor: codes, values, error, and whether it is normal."""

from qtui_core.answers.tensors import (
    ColumnCount,
    ErrorReport,
    Outlier,
    OutlierReport,
    TensorStatistics,
)
from qtui_core.quant.attribution import (
    Attribution,
    Kept,
    SweepPoint,
    attribute_error,
    decomposition_sweep,
    keep_columns,
)
from qtui_core.quant.columns import ColumnMagnitude, ColumnStatistics, column_statistics
from qtui_core.quant.elements import Injected
from qtui_core.quant.explain import explain
from qtui_core.quant.gaussian import gaussian_relative_mse
from qtui_core.quant.granularities import (
    GranularityError,
    GranularityErrors,
    error_by_granularity,
)
from qtui_core.quant.levels import levels
from qtui_core.quant.maps import MapKind, Pooling, TensorMap, Window, error_map, tensor_map
from qtui_core.quant.measure import measure
from qtui_core.quant.outliers import find_beyond, find_outliers
from qtui_core.quant.quantized import QuantizedTensor, quantize
from qtui_core.quant.reading import Cancelled
from qtui_core.quant.statistics import ValueHistogram, histogram, statistics
from qtui_core.quant.storage import bits_per_parameter, quantized_bytes
from qtui_core.schemes.granularity import (
    Granularity,
    PerBlock,
    PerColumn,
    PerGroup,
    PerModel,
    PerRow,
    PerTensor,
    PerTile,
    PerToken,
)
from qtui_core.schemes.scheme import Scheme

__all__ = [
    "Attribution",
    "Cancelled",
    "ColumnCount",
    "ColumnMagnitude",
    "ColumnStatistics",
    "ErrorReport",
    "Granularity",
    "GranularityError",
    "GranularityErrors",
    "Injected",
    "Kept",
    "MapKind",
    "Outlier",
    "OutlierReport",
    "PerBlock",
    "PerColumn",
    "PerGroup",
    "PerModel",
    "PerRow",
    "PerTensor",
    "PerTile",
    "PerToken",
    "Pooling",
    "QuantizedTensor",
    "Scheme",
    "SweepPoint",
    "TensorMap",
    "TensorStatistics",
    "ValueHistogram",
    "Window",
    "attribute_error",
    "bits_per_parameter",
    "column_statistics",
    "decomposition_sweep",
    "error_by_granularity",
    "error_map",
    "explain",
    "find_beyond",
    "find_outliers",
    "gaussian_relative_mse",
    "histogram",
    "keep_columns",
    "levels",
    "measure",
    "quantize",
    "quantized_bytes",
    "statistics",
    "tensor_map",
]
