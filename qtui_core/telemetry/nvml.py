"""Asking NVML, the driver's own library: each question may fail by itself.

`nvml` is always the module that speaks it (nvidia-ml-py, imported as `pynvml`) or, in tests, an
object with the same functions.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

#: NVML_ERROR_NOT_SUPPORTED and NVML_ERROR_GPU_IS_LOST of nvml.h.
NOT_SUPPORTED: Final = 3
GPU_IS_LOST: Final = 15


def start_nvml(nvml: Any = None) -> Any:
    """The module, initialised, which has to be ended with `nvmlShutdown`; None without a driver.

    NVML counts its starts: each needs an end of its own.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml


def answer(nvml: Any, question: str, *arguments: Any) -> Any:
    """NVML's answer, or None where it has none: this driver or device does not know the
    question, or does not tell this user."""
    found, _ = answer_or_error(nvml, question, *arguments)
    return found


def answer_or_error(nvml: Any, question: str, *arguments: Any) -> tuple[Any, int | None]:
    """NVML's answer, and the number of its error (0 where it gave none), None with an answer.

    A function that this version of the module or the driver does not have is NOT_SUPPORTED. Old
    drivers give names that are no UTF-8, which the module raises as UnicodeDecodeError.
    """
    function = getattr(nvml, question, None)
    if function is None:
        return None, NOT_SUPPORTED
    try:
        found = function(*arguments)
    except nvml.NVMLError as error:
        return None, int(getattr(error, "value", 0) or 0)
    except UnicodeDecodeError:
        return None, 0
    except getattr(nvml, "NVMLLibraryMismatchError", ()):
        return None, NOT_SUPPORTED
    return found, None


def text(found: Any) -> str | None:
    """A name: bytes of old versions of the module, text of new ones."""
    return found.decode(errors="replace") if isinstance(found, bytes) else found
