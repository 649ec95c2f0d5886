"""Questions to NVML, the driver's own library. Each may fail by itself.

`nvml` is always the Python module for it (nvidia-ml-py, imported as `pynvml`) or, in tests, an
object with the same functions.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

#: NVML_ERROR_NOT_SUPPORTED and NVML_ERROR_GPU_IS_LOST of nvml.h.
NOT_SUPPORTED: Final = 3
GPU_IS_LOST: Final = 15


def start_nvml(nvml: Any = None) -> Any:
    """The module, initialised; None without a driver. The caller must call `nvmlShutdown`.

    NVML counts initialisations: each needs a shutdown of its own.
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
    """NVML's answer; None if this driver or device does not know the question or does not answer it
    for this user."""
    reply, _ = answer_or_error(nvml, question, *arguments)
    return reply


def answer_or_error(nvml: Any, question: str, *arguments: Any) -> tuple[Any, int | None]:
    """NVML's answer and None; or None and the number of NVML's error (0 if it gave no number).

    A function that is missing from this version of the module or driver counts as NOT_SUPPORTED.
    Old drivers return names that are not UTF-8, for which the module raises UnicodeDecodeError.
    """
    function = getattr(nvml, question, None)
    if function is None:
        return None, NOT_SUPPORTED
    try:
        reply = function(*arguments)
    except nvml.NVMLError as error:
        return None, int(getattr(error, "value", 0) or 0)
    except UnicodeDecodeError:
        return None, 0
    except getattr(nvml, "NVMLLibraryMismatchError", ()):
        return None, NOT_SUPPORTED
    return reply, None


def memory_of(nvml: Any, handle: Any) -> tuple[Any, int | None]:
    """NVML's answer about memory, or its error. Version 2 of the question separates what the driver
    and the firmware reserve from used memory, as nvidia-smi does; on an H200 that is 615 MiB in
    which no process can be. Drivers before 510 know only version 1."""
    version = getattr(nvml, "nvmlMemory_v2", None)
    if version is not None:
        reply, error = answer_or_error(nvml, "nvmlDeviceGetMemoryInfo", handle, version)
        if reply is not None or error == GPU_IS_LOST:
            return reply, error
    return answer_or_error(nvml, "nvmlDeviceGetMemoryInfo", handle)


def text(reply: Any) -> str | None:
    """A name, which old versions of the module return as bytes and new ones as text."""
    return reply.decode(errors="replace") if isinstance(reply, bytes) else reply
