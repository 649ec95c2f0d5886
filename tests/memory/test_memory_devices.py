"""The catalogue of GPUs, compared with what its figures follow from: units on the die, clocks, bus
widths, and the figures with sparsity that vendors print."""

from __future__ import annotations

import re

import pytest
from every import over

from qtui_core.errors import UsageError
from qtui_core.memory.devices.device import DEVICES, device_of_memory, find_device
from qtui_core.quantities import parse_memory

NAMES = [device.name for device in DEVICES]

#: Multiply-adds in fp16 with fp32 sums a clock and multiprocessor, from the architecture white
#: papers: GeForce cards do half of what the same die does in a professional card.
MULTIPLY_ADDS = {
    (7, 0): 512,
    (7, 5): 512,
    (8, 0): 1024,
    (8, 6): 512,
    (8, 9): 512,
    (9, 0): 2048,
    (10, 0): 4096,
    (10, 3): 4096,
    (12, 0): 512,
}
HALVED = ("RTX 2080", "RTX 3060", "RTX 3080", "RTX 3090", "RTX 40", "RTX 50", "A10G")

#: What datasheets print "with sparsity", of fp16 or bf16, in TFLOPS.
WITH_SPARSITY = {
    "A100 SXM4 80GB": 624,
    "A100 PCIe 40GB": 624,
    "A30": 330,
    "A10": 250,
    "A10G": 140,
    "A40": 299.4,
    "RTX A6000": 309.7,
    "RTX 3090": 142.3,
    "L4": 242,
    "L40S": 733,
    "L40": 362,
    "RTX 6000 Ada": 728.5,
    "RTX 4090": 330.4,
    "H100 SXM5 80GB": 1979,
    "H100 PCIe 80GB": 1513,
    "H100 NVL 94GB": 1671,
    "H200 SXM 141GB": 1979,
    "B200": 4500,
    "RTX 5090": 419,
    "RTX PRO 6000 Blackwell": 1007.6,
}

#: Width of the memory bus in bits, and bits a second and line in 10^9.
MEMORY_BUS = {
    "T4": (256, 10),
    "RTX 2080 Ti": (352, 14),
    "RTX 3060 12GB": (192, 15),
    "RTX 3080 10GB": (320, 19),
    "RTX 3090": (384, 19.5),
    "A10": (384, 12.5),
    "A40": (384, 14.5),
    "RTX A6000": (384, 16),
    "L4": (192, 12.5),
    "L40S": (384, 18),
    "RTX 6000 Ada": (384, 20),
    "RTX 4060 Ti 16GB": (128, 18),
    "RTX 4070": (192, 21),
    "RTX 4080": (256, 22.4),
    "RTX 4090": (384, 21),
    "RTX 4090 Laptop": (256, 18),
    "RTX 5080": (256, 30),
    "RTX 5090": (512, 28),
    "RTX PRO 6000 Blackwell": (512, 28),
    "A100 SXM4 40GB": (5120, 2.43),
    "V100 SXM2 32GB": (4096, 1.757),
    "B200": (7680, 7.992),
}


def test_there_are_enough_and_each_once():
    assert len(NAMES) >= 40
    assert len(set(NAMES)) == len(NAMES)


@over("name", [d.name for d in DEVICES if d.capability])
def test_matrix_rate_follows_from_units_and_clock(name):
    device = find_device(name)
    per_clock = MULTIPLY_ADDS[device.capability]
    if device.name.startswith(HALVED) or device.name == "L40":
        per_clock //= 2
    peak = 2 * per_clock * device.multiprocessors * device.boost_mhz * 1e6
    share = device.rate("fp16") / peak
    if device.capability in ((9, 0), (10, 0), (10, 3)):
        # Their matrix rates are stated at a clock below the highest, which NVIDIA does not print.
        assert 0.75 < share <= 1.0
    else:
        assert share == pytest.approx(1, abs=0.025)


@over("name", NAMES)
def test_types_keep_their_ratios(name):
    rates = find_device(name).rates
    fp16 = rates["fp16"]
    for dtype, ratio in (("bf16", 1), ("tf32", 0.5), ("fp8", 2)):
        if dtype in rates:
            assert rates[dtype] / fp16 == pytest.approx(ratio, rel=0.02), dtype
    if "bf16" in rates:
        assert ("tf32" in rates) == (find_device(name).architecture != "CDNA 2")
    # Only what came before Ampere has no bf16; fp8 came with Ada and Hopper, fp4 with Blackwell.
    capability = find_device(name).capability
    if capability is not None:
        assert ("bf16" in rates) == (capability >= (8, 0))
        assert ("fp8" in rates) == (capability >= (8, 9))
        assert ("fp4" in rates) == (capability >= (10, 0))
        assert capability < (10, 0) or "int4" not in rates


@over(("name", "sparse"), WITH_SPARSITY.items())
def test_dense_is_half_of_what_is_printed_with_sparsity(name, sparse):
    assert find_device(name).rate("fp16") == pytest.approx(sparse / 2 * 1e12, rel=0.015)


@over(("name", "bus"), MEMORY_BUS.items())
def test_bandwidth_follows_from_the_bus(name, bus):
    width, rate = bus
    assert find_device(name).bandwidth == pytest.approx(width * rate / 8 * 1e9, rel=0.005)


@over("name", NAMES)
def test_sizes_are_bytes_and_plausible(name):
    device = find_device(name)
    assert device.name == name
    assert 0.9 * device.memory_gb * 10**9 < device.capacity_bytes < 1.09 * device.memory_gb * 10**9
    if device.total is not None:
        assert device.capacity_bytes < device.total
        assert device.capacity_bytes > 0.96 * device.total
    assert 2 * 10**11 < device.bandwidth < 10**13
    assert 2**21 < device.l2 < 2**28
    unit = device.multiprocessor
    assert unit.shared < unit.registers
    assert unit.registers in (256 << 10, 512 << 10)


def test_fp32_follows_from_the_vector_units():
    # 64 multiply-adds a clock to Turing, Volta and GA100, 128 since.
    for device in DEVICES:
        if device.capability is None or device.capability[0] == 10:
            continue
        wide = device.capability >= (8, 6)
        peak = 2 * (128 if wide else 64) * device.multiprocessors * device.boost_mhz * 1e6
        assert device.rate("fp32") == pytest.approx(peak, rel=0.11), device.name


@over(
    ("typed", "name"),
    [
        ("4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 4090 Laptop"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2 32GB"),
        ("Tesla V100-PCIE-16GB", "V100 PCIe 16GB"),
        ("v100", "V100 SXM2 32GB"),
        ("a100", "A100 SXM4 80GB"),
        ("a100-40", "A100 SXM4 40GB"),
        ("A100 40 GiB", "A100 SXM4 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5 80GB"),
        ("NVIDIA H100 PCIe", "H100 PCIe 80GB"),
        ("H100 NVL", "H100 NVL 94GB"),
        ("h200", "H200 SXM 141GB"),
        ("NVIDIA H200", "H200 SXM 141GB"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("NVIDIA GH200 120GB", "GH200 96GB"),
        ("b200", "B200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell"),
        ("NVIDIA A10G", "A10G"),
        ("a10", "A10"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell"),
        ("4060 ti", "RTX 4060 Ti 16GB"),
        ("AMD Instinct MI300X", "MI300X"),
        ("mi250x", "MI250X"),
    ],
)
def test_names_are_found_as_people_and_drivers_write_them(typed, name):
    assert find_device(typed).name == name


@pytest.mark.parametrize("typed", ["H1000", "RTX 4095", "A100 64GB", "", "gpu", "rtx", "NVIDIA"])
def test_an_unknown_name_offers_near_ones(typed):
    with pytest.raises(UsageError) as raised:
        find_device(typed)
    assert repr(typed) in str(raised.value)
    assert any(name in str(raised.value) for name in NAMES)


def test_nearest_names_are_near():
    with pytest.raises(UsageError, match="RTX 4090"):
        find_device("RTX 4095")
    with pytest.raises(UsageError, match="H100"):
        find_device("H1000")


def test_a_type_without_units_is_refused_with_those_there_are():
    with pytest.raises(UsageError, match=r"T4 does not compute in bf16.*fp16"):
        find_device("T4").rate("bf16")


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("24GiB", 24 << 30),
        ("24 GB", 24 << 30),
        ("24", 24 << 30),
        ("40g", 40 << 30),
        ("81559 MiB", 81559 << 20),
        ("1.5GiB", 3 << 29),
        ("0.5t", 1 << 39),
        ("2097152b", 2 << 20),
    ],
)
def test_amounts_of_memory(text, nbytes):
    assert parse_memory(text) == nbytes


@pytest.mark.parametrize(
    "text",
    ["", "much", "24 apples", "-3GiB", "0", "0GiB", "1e3", "GiB", "0.5b", "25769803776", "9" * 400],
)
def test_what_is_no_amount_of_a_gpu_is_refused(text):
    with pytest.raises(UsageError, match="24GiB"):
        parse_memory(text)


def test_a_device_can_be_its_memory_alone():
    device = device_of_memory(24 << 30)
    assert device.name == "a GPU of 24 GiB"
    assert device.capacity_bytes == 24 << 30
    assert device_of_memory(10 << 30).name == "a GPU of 10 GiB"
    assert device_of_memory(3 << 29).name == "a GPU of 1.5 GiB"
    assert device_of_memory(100 << 20).name == "a GPU of 100 MiB"
    with pytest.raises(UsageError):
        device.rate("bf16")


def test_a_word_of_many_names_offers_those():
    with pytest.raises(UsageError) as said:
        find_device("RTX")
    offered = re.search(r"Near it: (.*?)\. ", str(said.value))[1].split(", ")
    assert len(offered) > 3
    assert all(name.startswith("RTX") for name in offered)
