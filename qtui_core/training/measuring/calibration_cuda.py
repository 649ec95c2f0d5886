"""The current CUDA device of torch, as `calibrate` uses it."""

from __future__ import annotations

from typing import Any, Final

import torch

from qtui_core.telemetry.readings import DeviceReader, process_of
from qtui_core.training.measuring.meters import clear_workspaces, start_cuda

#: Rows of the matrices that are multiplied, large enough that cuBLAS allocates its workspace.
_ROWS: Final = 1024


class CudaMachine:
    """`reader` reads the same GPU through NVML. What is in use before CUDA starts belongs to other
    processes."""

    def __init__(self, reader: DeviceReader) -> None:
        self._reader = reader
        before = reader.read()
        self._others = before.memory_used
        self._name = before.name or "a GPU"

    def process(self) -> tuple[int | None, str]:
        torch.cuda.synchronize()
        return process_of(self._reader.read(), self.reserved(), self._others)

    def allocated(self) -> int:
        return torch.cuda.memory_allocated()

    def reserved(self) -> int:
        return torch.cuda.memory_reserved()

    def start(self) -> None:
        start_cuda(self._name)
        torch.zeros(1, device="cuda")

    def multiply(self, *, backward: bool) -> None:
        a, b = (
            torch.randn(_ROWS, _ROWS, device="cuda", dtype=torch.float16, requires_grad=backward)
            for _ in range(2)
        )
        result = a @ b
        if backward:
            result.sum().backward()
        torch.cuda.synchronize()

    def clear_workspaces(self) -> None:
        clear_workspaces()

    def hold(self, nbytes: int) -> Any:
        return torch.empty(nbytes, dtype=torch.uint8, device="cuda")

    def empty(self) -> None:
        torch.cuda.empty_cache()

    def settings(self) -> dict[str, Any]:
        found = torch.cuda.memory._snapshot().get("allocator_settings", {})
        return {str(k): v for k, v in found.items() if isinstance(v, int | float | str | None)}
