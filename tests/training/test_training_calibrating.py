"""What a calibration finds on a GPU that is played by a class which counts its own memory."""

from __future__ import annotations

import os
import weakref
from typing import Any

import pytest
from fake_nvml import GIB, fake_nvml, process
from lazy_imports import LazyImport, lazy_names

from qtui_core.telemetry.readings import DeviceReader
from qtui_core.training.run.placement import NoGpu

torch = LazyImport("torch")
CudaMachine, calibrate = lazy_names(
    "qtui_core.training.measuring.rates", "CudaMachine", "calibrate"
)


MIB = 1 << 20
FIRST, KERNELS, WORKSPACE = 270 * MIB, 150 * MIB, 32 * MIB


class Books:
    """A GPU: contexts grow when kernels load, each thread has a workspace, segments have 2 or 20
    MiB or the size of their tensor, and a small empty segment stays until it is released."""

    def __init__(self, *, tells: bool = True, backward_thread: bool = True) -> None:
        self.context = 0
        self.tells = tells
        self.backward_thread = backward_thread
        self.segments = 0
        self.tensors = 0
        self.empty_small = False
        self.workspaces: set[str] = set()
        self.done: list[str] = []

    def process(self) -> tuple[int | None, str]:
        self.done.append("process")
        found = self.context + self.reserved()
        return (found, "this process") if self.tells else (None, "")

    def allocated(self) -> int:
        return self.tensors + WORKSPACE * len(self.workspaces)

    def reserved(self) -> int:
        return self.segments

    def start(self) -> None:
        assert "process" not in self.done
        self.context = FIRST
        self.empty_small = True  # the first tensor is gone, its segment is not
        self.segments += 2 * MIB

    def multiply(self, *, backward: bool) -> None:
        self.context = FIRST + KERNELS
        threads = {"main", "autograd"} if backward and self.backward_thread else {"main"}
        self.segments += 40 * MIB * len(threads - self.workspaces)
        self.workspaces |= threads

    def clear_workspaces(self) -> None:
        self.workspaces.clear()

    def hold(self, nbytes: int) -> Any:
        size = 2 * MIB if nbytes <= MIB else 20 * MIB if nbytes < 10 * MIB else nbytes + MIB
        if size == 2 * MIB and self.empty_small:
            self.empty_small, size = False, 0
        self.segments += size
        books = self

        class Tensor:
            def __del__(self) -> None:
                books.segments -= size

        return Tensor()

    def empty(self) -> None:
        self.segments -= 2 * MIB * self.empty_small
        self.empty_small = False

    def settings(self) -> dict[str, Any]:
        return {"expandable_segments": False}


def test_context_without_segments_workspaces_by_thread_and_segments_by_size():
    found = calibrate(Books())
    assert found.context_first == FIRST
    assert found.context_products == FIRST + KERNELS
    assert found.workspace_forward == WORKSPACE
    assert found.workspace_training == 2 * WORKSPACE
    assert found.segments == {"1024": 2 * MIB, str(2 * MIB): 20 * MIB, str(11 * MIB): 12 * MIB}
    assert found.allocator == {"expandable_segments": False}
    assert found.context_basis == "this process"


def test_a_driver_that_does_not_tell_leaves_the_rest():
    assert calibrate(Books(backward_thread=False)).workspace_training == WORKSPACE
    found = calibrate(Books(tells=False))
    assert (found.context_first, found.context_products, found.context_basis) == (None, None, "")
    assert found.workspace_training == 2 * WORKSPACE


def test_nothing_of_the_first_tensor_stays_on_a_gpu(monkeypatch):
    """The room beside it would be used for the small tensor whose segment is measured."""
    made: list[weakref.ref[torch.Tensor]] = []
    plain = torch.zeros

    def zeros(*size: int, device: str) -> torch.Tensor:
        assert device == "cuda"
        tensor = plain(*size)
        made.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr("torch.zeros", zeros)
    machine = CudaMachine(DeviceReader(0, nvml=fake_nvml()))
    machine.start()
    assert [ref() for ref in made] == [None]


def test_a_process_smaller_than_what_is_reserved_is_another(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    reserved = [0]
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: reserved[0])
    rows = [process(os.getpid(), GIB), process(3, 2 * GIB)]
    machine = CudaMachine(
        DeviceReader(0, nvml=fake_nvml(nvmlDeviceGetComputeRunningProcesses=rows))
    )
    assert machine.process() == (GIB, "this process")
    reserved[0] = 2 * GIB
    assert machine.process() == (0, "more in use than before")  # of what does not change here


def test_a_gpu_that_torch_cannot_use_is_none(monkeypatch):
    def refuse() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).")

    monkeypatch.setattr(torch.cuda, "init", refuse)
    with pytest.raises(NoGpu, match=r"NVIDIA L4.*too old"):
        CudaMachine(DeviceReader(0, nvml=fake_nvml())).start()
