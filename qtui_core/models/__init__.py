"""Where a model comes from: hub, folder, file, bare configuration, or the demo inside.

Standard library only, huggingface_hub when a hub id is opened; `qtui_core.models.files.arrays`
needs numpy.
"""

from qtui_core.models.opening import open_model
from qtui_core.models.recognise import QuantizationInfo
from qtui_core.models.source import ModelSource
from qtui_core.models.tensors import Reading, Role, TensorInfo, row_elements, rows_of

__all__ = [
    "ModelSource",
    "QuantizationInfo",
    "Reading",
    "Role",
    "TensorInfo",
    "open_model",
    "row_elements",
    "rows_of",
]
