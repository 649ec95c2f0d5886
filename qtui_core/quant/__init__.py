"""What a quantization scheme does to a tensor: codes, values, error, and whether it is normal."""

from qtui_core.answers import ErrorReport, OutlierReport, TensorStatistics
from qtui_core.job import Cancelled
from qtui_core.quant.attribution import attribute_error, decomposition_sweep, keep_columns
from qtui_core.quant.columns import ColumnStatistics
from qtui_core.quant.elements import Replaced
from qtui_core.quant.explain import explain
from qtui_core.quant.gaussian import gaussian_relative_mse
from qtui_core.quant.maps import MapKind, Pooling, Window, tensor_map
from qtui_core.quant.measure import measure
from qtui_core.quant.outliers import find_beyond, find_outliers
from qtui_core.quant.quantized import QuantizedTensor, quantize
from qtui_core.quant.statistics import histogram, statistics
from qtui_core.quant.storage import bits_per_parameter, quantized_bytes
from qtui_core.schemes.granularity import (
    PerBlock,
    PerColumn,
    PerGroup,
    PerModel,
    PerRow,
    PerTensor,
)
from qtui_core.schemes.scheme import Scheme
