"""The memories of GPUs, compared with figures of white papers and articles that are not in the
catalogue."""

from __future__ import annotations

import pytest
from every import over

from qtui_core.memory.devices.device import DEVICES, device_of_memory, find_device
from qtui_core.roofline.hierarchy import (
    INFINITY,
    L1,
    L2,
    MEMORY,
    REGISTERS,
    MemoryLevel,
    bandwidth_of,
    hierarchy,
)

MIB = 1 << 20


def levels(name: str) -> dict[str, MemoryLevel]:
    return {level.name: level for level in hierarchy(find_device(name))}


@over("device", DEVICES, ids=lambda device: device.name)
def test_each_is_faster_than_the_next(device: object) -> None:
    found = hierarchy(device)  # type: ignore[arg-type]
    assert [level.name for level in found if level.name != INFINITY] == [REGISTERS, L1, L2, MEMORY]
    speeds = [level.bandwidth for level in found if level.bandwidth is not None]
    assert speeds == sorted(speeds, reverse=True)
    assert len(set(speeds)) == len(speeds)
    for level in found:
        assert level.source
        assert (level.bandwidth is None) == (level.basis == "")
    assert found[-1].bytes > found[-2].bytes


@pytest.mark.parametrize(
    ("name", "level", "terabytes"),
    [
        # Table 3 of doi:10.1016/j.ultsonch.2023.106546: L2 of both, shared memory of full dies
        # (84 and 128 multiprocessors), taken to the 80 and 108 that are sold.
        ("V100", L2, 3.133),
        ("A100", L2, 7.219),
        ("V100", L1, 16.451 * 80 / 84),
        ("A100", L1, 23.101 * 108 / 128),
        # Chen Jia et al. 2019: 4 MiB at 1,270 GB/s.
        ("T4", L2, 1.270),
        # CDNA 2 white paper: 6.96 TB/s a die; CDNA 3: 17.2 TB/s of Infinity Cache.
        ("MI250X", L2, 6.96),
        ("MI300X", INFINITY, 17.2),
    ],
)
def test_published_bandwidths(name: str, level: str, terabytes: float) -> None:
    assert levels(name)[level].bandwidth == pytest.approx(terabytes * 1e12, rel=2e-3)


def test_sizes_of_white_papers() -> None:
    # A100 white paper: 27,648 KB of registers; 164 KB of shared memory in 192 KB of L1.
    assert levels("A100")[REGISTERS].bytes == 27_648 * 1024
    # H100 white paper: 33,792 KB of registers in 132 multiprocessors; 256 KB of L1 each.
    assert levels("H100")[REGISTERS].bytes == 33_792 * 1024
    assert levels("H100")[L1].per_unit == 256 * 1024
    # Ada white paper: 16,384 KB of L1 and 73,728 KB of L2 in a 4090.
    assert levels("4090")[L1].bytes == 16_384 * 1024
    assert levels("4090")[L2].bytes == 73_728 * 1024
    assert levels("MI300X")[INFINITY].bytes == 256 * MIB


def test_what_nobody_states_is_not_made_up() -> None:
    assert levels("H100")[L2].bandwidth is None
    assert levels("A30")[L2].bandwidth is None
    assert bandwidth_of(find_device("H100"), L2) is None
    assert bandwidth_of(find_device("H100"), INFINITY) is None
    assert bandwidth_of(find_device("H100"), MEMORY) == 3350 * 10**9


def test_registers_feed_the_units_they_must() -> None:
    # 128 lanes x 16 B x 132 multiprocessors x 1980 MHz, each lane a multiply-add a clock.
    assert levels("H100")[REGISTERS].bandwidth == pytest.approx(128 * 16 * 132 * 1.98e9, rel=2e-3)


def test_a_gpu_known_by_its_memory_alone_has_no_levels() -> None:
    assert hierarchy(device_of_memory(24 << 30)) == ()
