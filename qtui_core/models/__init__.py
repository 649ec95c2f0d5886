"""Where a model comes from: hub, folder, file, bare configuration, or the demo inside.

Standard library only, huggingface_hub when a hub id is opened; `qtui_core.models.files.arrays`
needs numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {"open_model": "opening", "QuantizationInfo": "recognise", "ModelSource": "source"}


def __getattr__(name: str) -> Any:
    # On demand: what shows a sentence (`quoting`) does not import what opens a model.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'tensors')}"), name)
