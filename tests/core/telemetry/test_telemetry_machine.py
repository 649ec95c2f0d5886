"""The facts of a machine, read from made-up files and from those of this machine."""

import os
import resource

import pytest
from fake_nvml import NVMLError, fake_nvml

from qtui_core.telemetry.machine import more_memory, read_machine
from qtui_core.telemetry.readings import Driver, read_driver

CPUINFO = """processor\t: 0
model name\t: Made Up 9000
flags\t\t: fpu avx2 avx512f amx_int8

processor\t: 1
model name\t: Another
"""


def tree(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_machine_is_read(tmp_path):
    tree(
        tmp_path,
        proc__cpuinfo=CPUINFO,
        proc__meminfo="MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    400 kB\n",
    )
    tree(tmp_path / "etc", **{"os-release": 'NAME="X"\nPRETTY_NAME="Made Linux 3"\n'})
    tree(tmp_path / "sys/fs/cgroup", **{"memory.max": "512000\n"})
    machine = read_machine(tmp_path)
    assert machine.processor == "Made Up 9000"
    assert machine.instructions == ("avx2", "avx512f", "amx_int8")
    assert (machine.memory_total, machine.memory_available) == (1_024_000, 409_600)
    assert machine.memory_limit == 512_000
    assert (machine.usable_memory, machine.free_memory) == (512_000, 409_600)
    assert machine.system == "Made Linux 3"


@pytest.mark.parametrize("text", ["max\n", "9223372036854771712\n", ""])
def test_no_limit_is_none(tmp_path, text):
    tree(tmp_path / "sys/fs/cgroup/memory", **{"memory.limit_in_bytes": text})
    machine = read_machine(tmp_path)
    assert machine.memory_limit is machine.free_memory is machine.usable_memory is None
    assert (machine.memory_total, machine.instructions) == (None, ())
    assert machine.cores >= 1
    assert machine.python


def test_a_limit_of_the_shell_counts_and_is_named_where_memory_ran_out(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    assert soft == resource.RLIM_INFINITY
    assert "ulimit" not in more_memory()
    resource.setrlimit(resource.RLIMIT_AS, (1 << 43, hard))
    try:
        assert read_machine(tmp_path).memory_limit == 1 << 43
        assert "gives each process 8 TiB (`ulimit -v`)" in more_memory()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.skipif(not os.path.exists("/proc/meminfo"), reason="Linux only")
def test_this_machine_has_memory():
    machine = read_machine()
    assert 0 < machine.memory_available <= machine.memory_total


def test_the_driver_and_the_newest_cuda_it_serves():
    """Either version may be unknown."""

    def told(version, cuda, **more):
        given = {"nvmlSystemGetDriverVersion": version, "nvmlSystemGetCudaDriverVersion": cuda}
        return read_driver(fake_nvml(**given, **more))

    assert told("580.65.06", 13010) == Driver("580.65.06", (13, 1))
    assert told("470.1", 11040) == Driver("470.1", (11, 4))
    assert told(NVMLError(), NVMLError()) == Driver(None, None)
    assert told("1", 1, nvmlInit=NVMLError()) is None
