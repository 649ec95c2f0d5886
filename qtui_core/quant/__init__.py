"""What a quantization scheme does to a tensor: codes, values, error, and whether it is normal."""

from qtui_core.quant.granularity import (
    Granularity,
    PerBlock,
    PerColumn,
    PerGroup,
    PerModel,
    PerRow,
    PerTensor,
)
from qtui_core.quant.quantized import QuantizedTensor, quantize
from qtui_core.quant.scheme import Scheme
from qtui_core.quant.storage import bits_per_parameter, quantized_bytes

__all__ = [
    "Granularity",
    "PerBlock",
    "PerColumn",
    "PerGroup",
    "PerModel",
    "PerRow",
    "PerTensor",
    "QuantizedTensor",
    "Scheme",
    "bits_per_parameter",
    "quantize",
    "quantized_bytes",
]
