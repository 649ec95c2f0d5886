"""The meter of the device that a run is on."""

from __future__ import annotations

import torch

from qtui_core.telemetry.readings import DeviceReader
from qtui_core.training.meter import Meter
from qtui_core.training.meter_cpu import CpuMeter
from qtui_core.training.meter_cuda import CudaMeter
from qtui_core.training.placement import NoGpu, Placement


def open_meter(placement: Placement) -> Meter:
    """Opens the device too, where it is a GPU.

    Raises NoGpu where the driver shows one that torch cannot use.
    """
    if placement.torch_device == "cpu":
        return CpuMeter()
    meter = CudaMeter(DeviceReader(placement.device.index or 0, uuid=placement.uuid))
    try:
        torch.cuda.init()
        torch.cuda.set_device(placement.torch_device)
    except (RuntimeError, AssertionError, torch.cuda.DeferredCudaCallError) as error:
        meter.close()
        raise NoGpu(
            f"The driver shows {placement.device.name}, and torch {torch.__version__} cannot use "
            f"it: {str(error).strip().splitlines()[0]}. Use --device cpu, or a torch that is built "
            f"for this driver."
        ) from error
    return meter
