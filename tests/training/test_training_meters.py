"""The meter of a GPU, with torch's counters and NVML played by test doubles."""

from __future__ import annotations

import os
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from fake_nvml import GIB, NOT_SUPPORTED, fake_nvml, process
from lazy_imports import LazyImport
from training_runs import conducted, configured

from qtui_core.live.snapshot import PhaseEnded
from qtui_core.memory.replay.record import Component
from qtui_core.telemetry.readings import DeviceReader
from qtui_core.training.run.request import Controls

torch = LazyImport("torch")
HeldByName = LazyImport("qtui_core.training.measuring.meters", "HeldByName")
CudaMeter = LazyImport("qtui_core.training.measuring.meters", "CudaMeter")
open_meter = LazyImport("qtui_core.training.measuring.meters", "open_meter")
held = LazyImport("qtui_core.training.measuring.meters", "held")
PhaseReporter = LazyImport("qtui_core.training.run.live", "PhaseReporter")


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """torch.cuda's counters, which a test sets, and a record of what torch.cuda was asked for."""
    found = SimpleNamespace(stats={}, calls=[])

    def noted(name: str, answer: Any = None) -> Any:
        def function(*_: Any) -> Any:
            found.calls.append(name)
            return answer() if callable(answer) else answer

        return function

    for name, answer in (
        ("synchronize", None),
        ("reset_peak_memory_stats", None),
        ("memory_stats", lambda: dict(found.stats)),
    ):
        monkeypatch.setattr(torch.cuda, name, noted(name, answer))
    return found


STATS = {
    "allocated_bytes.all.current": 5 << 20,
    "allocated_bytes.all.peak": 9 << 20,
    "reserved_bytes.all.current": 20 << 20,
    "reserved_bytes.all.peak": 22 << 20,
    "active_bytes.all.current": 6 << 20,
    "inactive_split_bytes.all.current": 3 << 20,
    "segment.all.current": 4,
    "num_alloc_retries": 1,
    "num_ooms": 2,
}


def test_a_phase_is_read_where_it_ends(counters):
    nvml = fake_nvml(nvmlDeviceGetComputeRunningProcesses=[process(os.getpid(), 2 * GIB)])
    meter = CudaMeter(DeviceReader(0, nvml=nvml))
    counters.stats.update(STATS)
    meter.begin("forward")
    assert counters.calls == ["synchronize", "reset_peak_memory_stats"]
    ended = meter.end(1.5, 3)
    # What was launched in a phase is waited for before its counters are read.
    assert counters.calls[2:4] == ["synchronize", "memory_stats"]
    assert (ended.phase, ended.step, ended.seconds) == ("forward", 3, 1.5)
    assert (ended.peak_allocated_bytes, ended.allocated_bytes) == (9 << 20, 5 << 20)
    assert (ended.peak_reserved_bytes, ended.reserved_bytes) == (22 << 20, 20 << 20)
    assert (ended.inactive_split_bytes, ended.segments) == (3 << 20, 4)
    assert (ended.retries, ended.out_of_memory) == (1, 2)
    assert (ended.process_bytes, ended.device_used_bytes) == (2 * GIB, 3 * GIB)
    assert ended.counted == "allocator"
    assert ended.peak_held == {}
    sample = meter.sample(2.0, 3, "forward")
    assert (sample.allocated_bytes, sample.reserved_bytes) == (5 << 20, 20 << 20)
    assert (sample.active_bytes, sample.utilisation_percent) == (6 << 20, 87)
    assert (sample.power_watts, sample.temperature_celsius, sample.clock_mhz) == (61.25, 56, 1890)
    assert sample.rss_bytes


def test_a_peak_that_is_not_to_be_seen_is_not(counters):
    """On an H200 the ranges of a step made its peak 7.6 % higher than that of any other."""
    meter = CudaMeter(DeviceReader(0, nvml=fake_nvml()))
    peaks = ("allocated_bytes.all.peak", "reserved_bytes.all.peak")

    def peaked(allocated: int, reserved: int) -> None:
        counters.stats |= dict(zip(peaks, (allocated, reserved), strict=True))

    meter.begin("backward")
    peaked(100, 200)
    with meter.unseen():
        peaked(900, 2000)
    assert counters.calls[-1] == "reset_peak_memory_stats"
    peaked(90, 210)
    ended = meter.end(0.0, 1)
    assert (ended.peak_allocated_bytes, ended.peak_reserved_bytes) == (100, 210)
    meter.begin("optimizer")
    assert meter.end(0.0, 1).peak_allocated_bytes == 90


def test_a_driver_that_says_nothing_leaves_what_torch_says(counters):
    names = [name for name in vars(fake_nvml()) if name.startswith("nvmlDeviceGet")]
    refusing = {n: NOT_SUPPORTED for n in names if "Handle" not in n and "Count" not in n}
    meter = CudaMeter(DeviceReader(0, nvml=fake_nvml(**refusing)))
    counters.stats.update(STATS)
    meter.begin("loss")
    ended = meter.end(0.0, 1)
    assert ended.allocated_bytes == 5 << 20
    assert (ended.process_bytes, ended.device_used_bytes) == (None, None)
    sample = meter.sample(0.0, 1, "loss")
    assert (sample.power_watts, sample.utilisation_percent, sample.clock_mhz) == (None, None, None)


def test_whose_the_memory_of_a_device_is(counters):
    """Where no process is told apart it is what came since the meter began. A process smaller than
    what is reserved is another: inside a container, their numbers differ from those on the host,
    which NVML reports."""
    used = [0]

    def metered(*processes: SimpleNamespace) -> Any:
        used[0] = 3 * GIB
        nvml = fake_nvml(
            nvmlDeviceGetMemoryInfo=lambda handle, version=0: SimpleNamespace(
                used=used[0], total=24 * GIB, free=24 * GIB - used[0], reserved=0
            ),
            nvmlDeviceGetComputeRunningProcesses=list(processes),
        )
        meter = CudaMeter(DeviceReader(0, nvml=nvml))
        used[0] = 11 * GIB
        meter.begin("forward")
        return meter

    meter = metered(process(1, None), process(2, None))
    assert meter.end(0.0, 1).process_bytes == 8 * GIB
    meter = metered(process(os.getpid(), GIB), process(2, 9 * GIB))
    counters.stats["reserved_bytes.all.current"] = 7 * GIB
    assert meter.end(0.0, 1).process_bytes == 8 * GIB
    assert meter.sample(0.0, 1, "forward").process_bytes == 8 * GIB
    counters.stats["reserved_bytes.all.current"] = GIB // 2
    assert meter.sample(0.0, 1, "forward").process_bytes == GIB


def test_a_cache_is_told_apart_while_it_lives(counters, monkeypatch):
    from qtui_core.training.measuring.meters import held

    monkeypatch.setattr(
        "qtui_core.training.measuring.meters.held",
        lambda standing, _, cache: held(standing, "cpu", cache),
    )
    linear = torch.nn.Linear(8, 8, bias=False)
    meter = CudaMeter(DeviceReader(0, nvml=fake_nvml()))
    meter.standing.built = SimpleNamespace(model=linear, state=linear.named_parameters)
    keys = torch.zeros(1000)
    meter.track([("cache.0", keys), ("cache.1", keys[:5])], Component.CACHE)
    meter.track([("other", torch.zeros(1000))], Component.INPUTS)
    counters.stats["allocated_bytes.all.current"] = 9000
    meter.begin("forward")
    expected = {"weights": 512, "key-value cache": 4096, "activations": 9000 - 4608}
    assert meter.end(0.0, 1).held == expected
    del keys
    meter.begin("forward")
    assert meter.end(0.0, 1).held == {"weights": 512, "activations": 9000 - 512}


def test_reading_is_no_part_of_a_step(monkeypatch):
    """With a clock on which each reading takes a second, and each wait for the device ten."""
    clock = [0.0]
    monkeypatch.setattr("qtui_core.training.run.live.time.perf_counter", lambda: clock[0])

    def takes(seconds: float, answer: Any = None) -> Any:
        def work(*_: Any) -> Any:
            clock[0] += seconds
            return answer

        return work

    ended = PhaseEnded(0.0, 1, "forward", 0, 0)
    reporter = PhaseReporter(takes(1.0), Controls(), 0.0)
    reporter.meter = SimpleNamespace(
        wait=takes(10.0), unseen=nullcontext, begin=takes(1.0), end=takes(1.0, ended)
    )
    reporter.phase("forward")
    reporter.phase("backward")
    clock[0] += 5.0
    assert reporter.seconds == 21.0
    assert reporter.working == 15.0


def test_what_is_left_between_steps_are_workspaces(counters):
    linear = torch.nn.Linear(64, 32, bias=False)
    built: Any = SimpleNamespace(model=linear, state=lambda: linear.named_parameters())
    meter = CudaMeter(DeviceReader(0, nvml=fake_nvml()))
    meter.standing.built = built
    weights = 64 * 32 * 4
    assert held(HeldByName(built), "cpu") == {"weights": weights}
    linear.weight.grad = torch.zeros_like(linear.weight)
    ids = torch.zeros(3, dtype=torch.int64)
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(linear.parameters())
    standing = HeldByName(built, optimizer, scaler, {"input_ids": ids, "labels": ids})
    expected = {"weights": weights, "gradients": weights, "inputs": 512}
    assert held(standing, "cpu") == expected
    scaler.scale(torch.ones(()))  # which makes its two numbers
    assert held(standing, "cpu") == expected | {"optimizer states": 1024}
    # None of this is on a GPU, so everything in its allocator is something else.
    for phase, allocated, expected in (
        ("forward", 9000, {"activations": 9000}),
        ("between steps", 4000, {"workspaces": 4000}),
        ("forward", 9000, {"workspaces": 4000, "activations": 5000}),
    ):
        counters.stats["allocated_bytes.all.current"] = allocated
        meter.begin(phase)
        assert meter.end(0.0, 1).held == expected


def test_states_that_wrap_others_are_those():
    """torchao's moments in 4 bits stand for float32: two elements a byte, a scale for each 128, and
    a table of 16 are what they take."""
    OptimState4bit = pytest.importorskip("torchao.optim.subclass_4bit").OptimState4bit
    linear = torch.nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.AdamW(linear.parameters())
    moment = OptimState4bit.zeros((64, 64), True, 128)
    assert moment.untyped_storage().nbytes() == 4 * 4096  # which is not there
    optimizer.state[linear.weight] = {"step": torch.tensor(0.0), "exp_avg": moment}
    built: Any = SimpleNamespace(model=linear, state=lambda: iter(()))
    found = held(HeldByName(built, optimizer), "cpu")
    assert found == {"optimizer states": 2048 + 512 + 512}


@pytest.mark.slow
def test_a_run_is_read_by_it_phase_for_phase(tmp_path, monkeypatch, counters):
    """A run whose tensors are on the CPU, told by the counters of a GPU: no operation is tracked,
    and every phase resets the peaks that it reads."""
    counters.stats.update(STATS)
    nvml = fake_nvml(nvmlDeviceGetComputeRunningProcesses=[process(os.getpid(), 2 * GIB)])
    meter = CudaMeter(DeviceReader(0, nvml=nvml))
    monkeypatch.setattr("qtui_core.training.run.live.open_meter", lambda _: meter)
    monkeypatch.setattr("qtui_core.training.run.live.INTERVAL", 1000.0)
    ran = conducted(configured(tmp_path), {"method": "qlora", "batch": 1, "sequence": 16}, 2)
    assert ran.code == 0, ran.fault
    assert all(loss is not None for loss in ran.losses)
    ended = ran.of(PhaseEnded)
    assert [e.phase for e in ended[-5:]] == [
        "forward", "loss", "backward", "optimizer", "between steps"
    ]  # fmt: skip
    assert {e.peak_allocated_bytes for e in ended} == {9 << 20}
    assert {e.process_bytes for e in ended} == {2 * GIB}
    resets = [n for n, call in enumerate(counters.calls) if call == "reset_peak_memory_stats"]
    assert len(resets) == len(ended)
    for number in resets:
        assert counters.calls[number - 1] == "synchronize"


@pytest.mark.slow
def test_a_device_that_is_lost_is_a_fault_all_the_same(tmp_path, monkeypatch, counters):
    counters.stats.update(STATS)
    meter = CudaMeter(DeviceReader(0, nvml=fake_nvml()))
    monkeypatch.setattr("qtui_core.training.run.live.open_meter", lambda _: meter)

    def lost(*_: Any, **__: Any) -> Any:
        raise RuntimeError("CUDA error: unspecified launch failure")

    def fail(*_: Any, **__: Any) -> Any:
        monkeypatch.setattr(torch.cuda, "synchronize", lost)
        lost()

    monkeypatch.setattr("torch.optim.AdamW.step", fail)
    ran = conducted(configured(tmp_path), {"method": "full", "batch": 1, "sequence": 16}, 2)
    assert (ran.code, ran.fault.kind, ran.fault.phase) == (1, "driver", "optimizer")
    assert "nvidia-smi" in ran.fault.text
