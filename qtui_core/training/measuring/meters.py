"""The meter of the device that a run is on."""

from __future__ import annotations

import torch

from qtui_core.telemetry.readings import DeviceReader
from qtui_core.training.measuring.meter import Meter
from qtui_core.training.measuring.meter_cpu import CpuMeter
from qtui_core.training.measuring.meter_cuda import CudaMeter
from qtui_core.training.run.placement import NoGpu, Placement


def open_meter(placement: Placement) -> Meter:
    """Opens the meter, and the device if it is a GPU.

    Raises NoGpu if the driver shows a GPU that torch cannot use.
    """
    if placement.torch_device == "cpu":
        return CpuMeter()
    meter = CudaMeter(DeviceReader(placement.device.index or 0, uuid=placement.uuid))
    try:
        start_cuda(placement.device.name, placement.torch_device)
    except NoGpu:
        meter.close()
        raise
    return meter


def start_cuda(name: str, device: str = "cuda:0") -> None:
    """Starts CUDA in torch. `name` is the driver's name of the GPU.

    Raises NoGpu if the driver shows the GPU and torch cannot use it.
    """
    try:
        torch.cuda.init()
        torch.cuda.set_device(device)
    except (RuntimeError, AssertionError, torch.cuda.DeferredCudaCallError) as error:
        raise NoGpu(
            f"The driver shows {name}, and torch {torch.__version__} cannot use it: "
            f"{str(error).strip().splitlines()[0]}. Use --device cpu, or a torch that is built for "
            f"this driver."
        ) from error


def clear_workspaces() -> None:
    """Frees cuBLAS's workspaces, which its next product makes again."""
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
