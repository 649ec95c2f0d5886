"""Readings of a GPU from NVML; each value may be missing."""

from __future__ import annotations

import mmap
import os
from dataclasses import fields, replace
from typing import Any

import pytest
from every import over
from fake_nvml import (
    GIB,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    NVMLError,
    NVMLLibraryMismatchError,
    fake_nvml,
    process,
)

from qtui_core.telemetry.readings import (
    BY_BEING_ALONE,
    BY_PID,
    DeviceReader,
    DeviceReading,
    ProcessReading,
    read_all,
    read_devices,
    rss_bytes,
)

WHOLE = DeviceReading(
    label="0",
    name="NVIDIA L4",
    memory_used=3 * GIB,
    memory_free=24 * GIB - 3 * GIB - GIB // 2,
    memory_total=24 * GIB,
    memory_reserved=GIB // 2,
    process_memory=GIB,
    process_basis=BY_PID,
    gpu_percent=87,
    power_watts=61.25,
    power_limit_watts=72.0,
    temperature_celsius=56,
    clock_mhz=1890,
    processes=(
        ProcessReading(41, "compute", "program 41", 2 * GIB),
        ProcessReading(77, "compute", "program 77", GIB),
    ),
    mig=False,
    unified=False,
)


def read(pid: int = 77, **answers: Any) -> DeviceReading:
    with DeviceReader(0, pid=pid, nvml=fake_nvml(**answers)) as reader:
        return reader.read()


def test_all_values_of_a_driver():
    assert read() == WHOLE


NAMELESS = tuple(replace(each, name=None) for each in WHOLE.processes or ())


@over("error", [NOT_SUPPORTED, NO_PERMISSION, NVMLError(999)])
@over(
    ("question", "absent"),
    [
        ("nvmlDeviceGetName", {"name": None}),
        ("nvmlDeviceGetUtilizationRates", {"gpu_percent": None}),
        ("nvmlDeviceGetPowerUsage", {"power_watts": None}),
        ("nvmlDeviceGetEnforcedPowerLimit", {"power_limit_watts": None}),
        ("nvmlDeviceGetTemperature", {"temperature_celsius": None}),
        ("nvmlDeviceGetClockInfo", {"clock_mhz": None}),
        ("nvmlDeviceGetMigMode", {"mig": None}),
        ("nvmlSystemGetProcessName", {"processes": NAMELESS}),
        ("nvmlDeviceGetGraphicsRunningProcesses", {}),
    ],
)
def test_each_value_may_be_absent_alone(question, absent, error):
    assert read(**{question: error}) == replace(WHOLE, **absent)


def test_what_is_no_text_or_not_known_to_an_old_module_is_absent():
    assert read(missing=("nvmlDeviceGetMigMode",)) == replace(WHOLE, mig=None)
    error = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    assert read(nvmlDeviceGetName=error) == replace(WHOLE, name=None)


def test_a_driver_older_than_the_module_has_no_answer() -> None:
    none = dict.fromkeys(("memory_used", "memory_free", "memory_total", "memory_reserved"))
    old = NVMLError(13)  # NVML_ERROR_FUNCTION_NOT_FOUND, of drivers before 510
    assert read(nvmlDeviceGetMemoryInfo=old) == replace(WHOLE, **none, unified=None)
    hidden = {"nvmlDeviceGetComputeRunningProcesses": NVMLLibraryMismatchError()}
    assert read(**hidden).processes == ()


def test_unified_memory_is_no_memory_of_the_device():
    names = ("memory_used", "memory_free", "memory_total", "memory_reserved")
    none: dict[str, Any] = dict.fromkeys(names)
    found = read(nvmlDeviceGetMemoryInfo=NOT_SUPPORTED)
    assert found == replace(WHOLE, **none, unified=True)
    # A MIG slice that this user may not query does not count as unified memory.
    found = read(nvmlDeviceGetMemoryInfo=NO_PERMISSION)
    assert found == replace(WHOLE, **none, unified=None)


def test_a_lost_device_says_so():
    found = read(nvmlDeviceGetMemoryInfo=GPU_IS_LOST)
    assert found.lost
    assert found.memory_total is None


COMPUTE, DRAW = "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"
OTHER, MINE = process(31337, 5 * GIB), process(77, 2 * GIB)


@pytest.mark.parametrize(
    ("pid", "answers", "memory", "basis"),
    [
        # NVML reports the process number on the host, which no process in a container has: the only
        # one is taken for ours, and one that draws is not one more. Of several none is.
        (12, {COMPUTE: [OTHER]}, 5 * GIB, BY_BEING_ALONE),
        (12, {COMPUTE: [OTHER], DRAW: [process(9, GIB)]}, 5 * GIB, BY_BEING_ALONE),
        (12, {}, None, ""),
        (77, {COMPUTE: [process(77, None)]}, None, ""),  # WDDM and WSL name no bytes
        (77, {COMPUTE: [MINE], DRAW: [MINE]}, 2 * GIB, BY_PID),
    ],
)
def test_the_memory_of_this_process(pid, answers, memory, basis):
    found = read(pid=pid, **answers)
    assert (found.process_memory, found.process_basis) == (memory, basis)
    assert len({each.pid for each in found.processes or ()}) == len(found.processes or ())


def test_hidden_processes_do_not_count_as_no_processes():
    assert read(**dict.fromkeys((COMPUTE, DRAW), NO_PERMISSION)).processes is None
    assert read(**{COMPUTE: [], DRAW: []}).processes == ()


def test_torch_gives_a_uuid_without_its_kind():
    def handle(uuid: str) -> str:
        if uuid != "MIG-1234":
            raise NVMLError(6)  # NVML_ERROR_NOT_FOUND
        return "slice"

    names: list[Any] = []
    nvml = fake_nvml(
        nvmlDeviceGetHandleByUUID=handle, nvmlDeviceGetName=lambda found: names.append(found)
    )
    DeviceReader(uuid="1234", nvml=nvml).read()
    assert names == ["slice"]


def test_an_unknown_uuid_has_no_values():
    reader = DeviceReader(uuid="1234", nvml=fake_nvml(nvmlDeviceGetHandleByUUID=NVMLError(6)))
    assert reader.read() == DeviceReading("0")


def test_without_a_driver_every_value_is_absent():
    with DeviceReader(0, nvml=fake_nvml(nvmlInit=NVMLError(12))) as reader:
        assert reader.read() == DeviceReading("0")


def test_nvml_is_ended_as_often_as_started():
    nvml = fake_nvml()
    with DeviceReader(0, nvml=nvml) as reader:
        reader.read()
        reader.read()
    assert reader.read() == DeviceReading("0")
    assert nvml.calls.count("nvmlInit") == nvml.calls.count("nvmlShutdown") == 1


def test_all_are_each_gpu_and_no_process_is_ours():
    found = read_all(fake_nvml(nvmlDeviceGetCount=2))
    assert [each.label for each in found] == ["0", "1"]
    assert found[0] == replace(WHOLE, process_memory=None, process_basis="")


def test_slices_follow_their_gpu():
    def part(handle: Any, number: int) -> str:
        if number == 1:
            raise NVMLError(6)  # a place for a slice that does not exist
        return f"{handle}, slice {number}"

    nvml = fake_nvml(
        nvmlDeviceGetMigMode=lambda handle: [int("slice" not in handle), 0],
        nvmlDeviceGetMaxMigDeviceCount=3,
        nvmlDeviceGetMigDeviceHandleByIndex=part,
        nvmlDeviceGetName=lambda handle: handle,
    )
    found = read_all(nvml)
    assert [(each.label, each.name) for each in found] == [
        ("0", "handle 0"),
        ("0:0", "handle 0, slice 0"),
        ("0:2", "handle 0, slice 2"),
    ]


def test_a_gpu_that_cannot_be_reached_is_still_one():
    found = read_all(fake_nvml(nvmlDeviceGetHandleByIndex=NO_PERMISSION))
    assert found == (DeviceReading("0"),)
    found = read_all(fake_nvml(nvmlDeviceGetHandleByIndex=GPU_IS_LOST))
    assert found == (DeviceReading("0", lost=True),)


def test_this_machine_answers():
    for device in read_all():
        for field in fields(device):
            value = getattr(device, field.name)
            assert not isinstance(value, int) or value >= 0


def test_the_resident_set_grows_with_what_is_touched():
    before = rss_bytes()
    if before is None:
        pytest.skip("no /proc here")
    # Fresh pages from the system: an allocator may return pages that were used before.
    with mmap.mmap(-1, 64 << 20) as held:
        for at in range(0, len(held), mmap.PAGESIZE):
            held[at] = 1
        after = rss_bytes()
    assert 60 << 20 < after - before < 80 << 20


def test_it_is_the_second_number_in_pages(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/statm").write_text("900 25 7 1 0 80 0\n")
    assert rss_bytes(tmp_path) == 25 * os.sysconf("SC_PAGE_SIZE")


def test_it_is_absent_without_proc(tmp_path):
    assert rss_bytes(tmp_path) is None


def test_devices_are_the_whole_gpus() -> None:
    assert read_devices(fake_nvml()) == (replace(WHOLE, process_memory=None, process_basis=""),)
    lost = read_devices(fake_nvml(nvmlDeviceGetHandleByIndex=GPU_IS_LOST))
    assert lost == (DeviceReading("0", lost=True),)
    for question in ("nvmlInit", "nvmlDeviceGetCount"):
        assert read_devices(fake_nvml(**{question: NVMLError()})) == ()
    for device in read_devices():  # of this machine
        assert device.memory_total is None or device.memory_total > 0
