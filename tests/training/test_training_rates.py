"""Rates that are measured here: real ones on a CPU, and those of CUDA with a test double."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from lazy_imports import LazyImport, lazy_names

from qtui_core.codec import from_plain, to_line
from qtui_core.memory.devices.device import find_device
from qtui_core.roofline.hierarchy import L2, hierarchy
from qtui_core.roofline.rates import DeviceFacts, MeasuredRate, device_of_facts, with_facts

torch = LazyImport("torch")
facts_of, measure_copy, measure_product, time_calls = lazy_names(
    "qtui_core.training.measuring.rates",
    "facts_of",
    "measure_copy",
    "measure_product",
    "time_calls",
)


def cpu() -> torch.device:
    return torch.device("cpu")


def test_a_call_is_timed_and_the_budget_kept():
    seconds = time_calls(lambda: time.sleep(0.02), cpu(), budget=0.1)
    assert 1 <= len(seconds) <= 6
    assert min(seconds) >= 0.02
    assert len(time_calls(lambda: time.sleep(0.05), cpu(), budget=0.01)) == 1


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "int8"])
def test_a_product_of_each_type(dtype):
    found = measure_product(cpu(), dtype, side=64, budget=0.05)
    assert found.per_second == pytest.approx(2 * 64**3 / found.seconds)
    assert (found.dtype, found.size, found.why_not) == (dtype, 64, "")


def test_what_cannot_be_multiplied_says_why(monkeypatch):
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError('"addmm_impl_cpu_" not implemented\nfor this')

    monkeypatch.setattr("torch.mm", refuse)
    found = measure_product(cpu(), "fp32", side=64)
    assert found.per_second is None
    assert found.why_not == '"addmm_impl_cpu_" not implemented'


def test_a_copy_reads_and_writes():
    found = measure_copy(cpu(), 1 << 20, budget=0.05)
    assert found.per_second == pytest.approx(2 * (1 << 20) / found.seconds)
    facts = facts_of(cpu())
    assert (facts.kind, bool(facts.name), facts.threads) == ("cpu", True, torch.get_num_threads())


def test_facts_of_cuda(monkeypatch):
    told = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=132,
        total_memory=85_029_158_912, L2_cache_size=52_428_800,
        shared_memory_per_multiprocessor=233_472, regs_per_multiprocessor=65_536,
        clock_rate=1_980_000, memory_clock_rate=2_619_000, memory_bus_width=5120,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: told)
    found = facts_of(torch.device("cuda:0"))
    assert found.registers == 256 << 10
    # 2 x 2619 MHz x 640 bytes: the 3.35 TB/s of the data sheet.
    assert found.bandwidth == pytest.approx(3.35e12, rel=2e-3)
    assert from_plain(DeviceFacts, json.loads(to_line(found))) == found


FACTS = DeviceFacts("cuda", "GPU X", (12, 1), 48, 16 << 30, 24 << 20, 100 << 10, 256 << 10, 2400)
RATES = [
    MeasuredRate("product", "bf16", 8192, 90e12, 0.01, 20),
    MeasuredRate("product", "fp32", 8192, 20e12, 0.05, 12),
    MeasuredRate("product", "fp8", 8192, None, why_not="no"),
    MeasuredRate("copy", "bytes", 1 << 30, 2.7e11, 0.008, 20),
]


def test_a_device_of_no_catalogue_is_what_it_tells_and_what_was_measured():
    found = device_of_facts(FACTS, RATES)
    assert dict(found.rates) == {"bf16": 90e12, "fp32": 20e12}
    assert found.bandwidth == 270 * 10**9
    assert found.capacity_bytes == 16 << 30
    levels = {level.name: level for level in hierarchy(found)}
    assert levels[L2].bytes == 24 << 20
    assert levels[L2].bandwidth is None


def test_a_known_device_takes_the_sizes_that_it_tells():
    l4 = find_device("L4")
    found = with_facts(l4, FACTS)
    assert (found.multiprocessors, found.l2, found.boost_mhz) == (48, 24 << 20, 2400)
    assert found.rates == l4.rates
    assert with_facts(l4, DeviceFacts("cuda", "NVIDIA L4")) == l4


def test_shares_of_what_is_stated():
    h100 = find_device("H100")
    assert RATES[0].share_of(h100) == pytest.approx(90e12 / 989.4e12)
    assert RATES[3].share_of(h100) == pytest.approx(2.7e11 / 3.35e12)
    assert RATES[2].share_of(h100) is None
    assert RATES[0].share_of(find_device("T4")) is None
