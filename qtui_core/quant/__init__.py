"""What a quantization scheme does to a tensor: codes, values, error, and whether it is normal."""

from qtui_core.quant.errormap import ErrorMap, Histogram, error_map, histogram
from qtui_core.quant.explain import explain
from qtui_core.quant.gaussian import gaussian_relative_mse
from qtui_core.quant.granularity import (
    Granularity,
    PerBlock,
    PerColumn,
    PerGroup,
    PerModel,
    PerRow,
    PerTensor,
)
from qtui_core.quant.levels import levels
from qtui_core.quant.measure import ErrorReport, measure
from qtui_core.quant.outliers import ColumnCount, Outlier, OutlierReport, find_outliers
from qtui_core.quant.parallel import Cancelled
from qtui_core.quant.quantized import QuantizedTensor, quantize
from qtui_core.quant.scheme import Scheme
from qtui_core.quant.statistics import TensorStatistics, statistics
from qtui_core.quant.storage import bits_per_parameter, quantized_bytes

__all__ = [
    "Cancelled",
    "ColumnCount",
    "ErrorMap",
    "ErrorReport",
    "Granularity",
    "Histogram",
    "Outlier",
    "OutlierReport",
    "PerBlock",
    "PerColumn",
    "PerGroup",
    "PerModel",
    "PerRow",
    "PerTensor",
    "QuantizedTensor",
    "Scheme",
    "TensorStatistics",
    "bits_per_parameter",
    "error_map",
    "explain",
    "find_outliers",
    "gaussian_relative_mse",
    "histogram",
    "levels",
    "measure",
    "quantize",
    "quantized_bytes",
    "statistics",
]
