"""Lets torch's autograd engine run a backward pass over fake tensors of a GPU that does not exist.

For the device of a gradient the engine uses two C++ objects: the device guard, which gives the
current stream, and the CUDA hooks, which tell whether there is an accelerator. A torch without CUDA
has no guard, and its hooks say that there is no accelerator, so a backward pass over fake CUDA
tensors fails.

Both objects are interfaces of virtual methods. Since nothing ever runs on the fake device, every
method may return the same value, 1. As a bool it means "yes", and as a count it means one device.
As the two bytes (type, index) of a c10::Device it means `cuda:0`. A c10::Stream is returned in two
registers, of which the second is set to 0, so it means the default stream of `cuda:0`. So both
objects are replaced by a table of methods that all point to one function of two instructions, and
no compiler is needed. No data is accessed: fake tensors have none.

Sources: c10/core/impl/DeviceGuardImplInterface.h, ATen/detail/CUDAHooksInterface.h of torch.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from pathlib import Path
from typing import Final

import torch

from qtui_core.errors import QtuiError

#: `return {1, 0}` in the calling convention of the machine.
_RETURN_ONE: Final = {
    # mov eax, 1; xor edx, edx; ret
    "x86_64": bytes.fromhex("b80100000031d2c3"),
    # mov x0, #1; mov x1, #0; ret
    "aarch64": bytes.fromhex("200080d2010080d2c0035fd6"),
}
#: The number of methods in the table; the longer of the two interfaces has about 60 in torch 2.13.
_METHODS: Final = 256
#: c10::DeviceType::CUDA and COMPILE_TIME_MAX_DEVICE_TYPES.
_CUDA: Final = 1
_DEVICE_TYPES: Final = 22

_REGISTRY: Final = "_ZN3c104impl26device_guard_impl_registryE"
_HOOKS: Final = "_ZN2at6detail12getCUDAHooksEv"

#: Objects that torch has pointers to until the process ends.
_kept: list[object] = []


def install() -> None:
    """Makes torch assume that there is one CUDA device, for the rest of this process. May be called
    again.

    Raises QtuiError if this is not Linux on x86-64 or aarch64, if the system forbids memory that is
    both written and executed, or if the interfaces of this torch have other names.
    """
    if _kept:
        return
    code = _RETURN_ONE.get(platform.machine())
    if code is None or sys.platform != "linux":
        raise QtuiError(
            f"Tracing a model without a GPU works on Linux on {' and '.join(_RETURN_ONE)}; this "
            f"is {sys.platform} on {platform.machine()}. Leave out --trace."
        )
    libraries = Path(torch.__file__).parent / "lib"
    try:
        core = ctypes.CDLL(str(libraries / "libc10.so"))
        cpu = ctypes.CDLL(str(libraries / "libtorch_cpu.so"))
        registry = (ctypes.c_void_p * _DEVICE_TYPES).in_dll(core, _REGISTRY)
        get_hooks = getattr(cpu, _HOOKS)
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except (OSError, AttributeError, ValueError) as error:
        raise QtuiError(
            f"A trace was written for torch 2.13 and needs memory that is both written and run, "
            f"which torch {torch.__version__} or this system does not give ({error}). Leave out "
            f"--trace."
        ) from error
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    table = (ctypes.c_void_p * _METHODS)(*[address] * _METHODS)
    guard = (ctypes.c_void_p * 1)(ctypes.addressof(table))
    for kept in (page, table, guard):
        # For ever: torch's threads still use them while Python's modules are torn down.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        _kept.append(kept)
    registry[_CUDA] = ctypes.addressof(guard)
    get_hooks.restype = ctypes.c_void_p
    ctypes.c_void_p.from_address(get_hooks()).value = ctypes.addressof(table)
