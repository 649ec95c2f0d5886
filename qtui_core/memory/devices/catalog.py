"""The GPUs, as data. Rates are in 10^12 operations a second, dense, as the vendor states them; half
of figures that are stated with sparsity.

Totals are MiB as nvidia-smi prints them, from public logs; those of V100 16GB, A10G and L40 are
those of similar cards. `cuda` is the number of bytes from cudaMemGetInfo or deviceQuery, if a log
has it; for the A100 SXM4 80GB it is the 79.25 GiB of a torch error message. GeForce cards have half
of their rate if products are summed in fp32, as torch does with fp16 and bf16.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from qtui_core.memory.devices.device import Device, Multiprocessor

KIB: Final = 1 << 10
MIB: Final = 1 << 20


def _unit(registers: int, l1: int, shared: int) -> Multiprocessor:
    return Multiprocessor(registers * KIB, l1 * KIB, shared * KIB)


#: (name, multiprocessor) by compute capability.
_ARCHITECTURES: Final = {
    (7, 0): ("Volta", _unit(256, 128, 96)),
    (7, 5): ("Turing", _unit(256, 96, 64)),
    (8, 0): ("Ampere", _unit(256, 192, 164)),
    (8, 6): ("Ampere", _unit(256, 128, 100)),
    (8, 9): ("Ada Lovelace", _unit(256, 128, 100)),
    (9, 0): ("Hopper", _unit(256, 256, 228)),
    (10, 0): ("Blackwell", _unit(256, 256, 228)),
    (10, 3): ("Blackwell Ultra", _unit(256, 256, 228)),
    (12, 0): ("Blackwell", _unit(256, 128, 100)),
}


def _nvidia(
    name: str,
    capability: tuple[int, int],
    multiprocessors: int,
    boost_mhz: int,
    memory_gb: int,
    bandwidth: float,
    l2: float,
    rates: dict[str, float],
    source: str,
    total: int | None = None,
    cuda: int | None = None,
    note: str = "",
    aliases: tuple[str, ...] = (),
) -> Device:
    """A row; bandwidth in 10^9 bytes a second, l2 in MiB, total in MiB, cuda in bytes."""
    architecture, multiprocessor = _ARCHITECTURES[capability]
    return Device(
        name,
        "NVIDIA",
        architecture,
        capability,
        multiprocessors,
        multiprocessor,
        boost_mhz,
        memory_gb,
        None if total is None else total * MIB,
        cuda,
        round(bandwidth * 10**9),
        round(l2 * MIB),
        MappingProxyType({dtype: rate * 1e12 for dtype, rate in rates.items()}),
        source,
        note,
        aliases,
    )


def _ampere_100(fp64: float, fp16: float) -> dict[str, float]:
    """The rates of GA100: no matrix units for fp32; tf32 has half of the fp16 rate, int8 twice,
    int4 four times."""
    return {
        "fp64": fp64,
        "fp32": fp64,
        "tf32": fp16 / 2,
        "fp16": fp16,
        "bf16": fp16,
        "int8": 2 * fp16,
        "int4": 4 * fp16,
    }


def _hopper(fp64: float, fp32: float, fp16: float) -> dict[str, float]:
    return {
        "fp64": fp64,
        "fp32": fp32,
        "tf32": fp16 / 2,
        "fp16": fp16,
        "bf16": fp16,
        "fp8": 2 * fp16,
        "int8": 2 * fp16,
    }


_A100: Final = _ampere_100(19.5, 312.0)
_H100_SXM: Final = _hopper(66.9, 66.9, 989.4)
_A100_SHEET: Final = "NVIDIA A100 datasheet; A100 architecture white paper"
_H100_SHEET: Final = "NVIDIA H100 datasheet; H100 architecture white paper"
_GEFORCE_30: Final = "NVIDIA Ampere GA102 architecture white paper"
_GEFORCE_40: Final = "NVIDIA Ada GPU architecture white paper"
_GEFORCE_50: Final = "NVIDIA RTX Blackwell GPU architecture white paper"


def _professional(
    fp32: float, fp16: float, *more: str, integers: float | None = None
) -> dict[str, float]:
    """The rates of workstation and server cards with GeForce dies. `more` are fp8, fp4 and int4
    if they exist; `integers` is half the rate of int8 if that is not fp16's."""
    half = integers or fp16
    rates = {"fp64": fp32 / 64, "fp32": fp32, "tf32": fp16 / 2, "fp16": fp16, "bf16": fp16}
    if "fp8" in more:
        rates["fp8"] = 2 * fp16
    if "fp4" in more:
        rates["fp4"] = 4 * half
    rates["int8"] = 2 * half
    if "int4" in more:
        rates["int4"] = 4 * half
    return rates


def _geforce(fp32: float, fp16: float, *more: str) -> dict[str, float]:
    """The rates of GeForce cards: those with fp32 sums are halved, which are fp16 and fp8, and
    integers and fp4 are not."""
    return _professional(fp32, fp16, *more, integers=2 * fp16)


_NVIDIA: Final = (
    _nvidia("T4", (7, 5), 40, 1590, 16, 320, 4,
            {"fp64": 0.25, "fp32": 8.1, "fp16": 65.0, "int8": 130.0, "int4": 260.0},
            "NVIDIA T4 datasheet; Turing architecture white paper", 15360, 15843721216),
    _nvidia("V100 SXM2 32GB", (7, 0), 80, 1530, 32, 900, 6,
            {"fp64": 7.8, "fp32": 15.7, "fp16": 125.0},
            "NVIDIA V100 datasheet", 32768, 34089730048, aliases=("V100", "V100 32GB")),
    _nvidia("V100 SXM2 16GB", (7, 0), 80, 1530, 16, 900, 6,
            {"fp64": 7.8, "fp32": 15.7, "fp16": 125.0},
            "NVIDIA V100 datasheet", 16384, aliases=("V100 16GB",)),
    _nvidia("V100 PCIe 32GB", (7, 0), 80, 1380, 32, 900, 6,
            {"fp64": 7.0, "fp32": 14.0, "fp16": 112.0},
            "NVIDIA V100 datasheet", 32768, 34089730048),
    _nvidia("V100 PCIe 16GB", (7, 0), 80, 1380, 16, 900, 6,
            {"fp64": 7.0, "fp32": 14.0, "fp16": 112.0}, "NVIDIA V100 datasheet", 16384),
    _nvidia("RTX 2080 Ti", (7, 5), 68, 1545, 11, 616, 5.5,
            {"fp64": 0.42, "fp32": 13.4, "fp16": 53.8, "int8": 215.2, "int4": 430.3},
            "NVIDIA Turing architecture white paper", 11264),
    _nvidia("A100 SXM4 80GB", (8, 0), 108, 1410, 80, 2039, 40, _A100, _A100_SHEET, 81920,
            85094039552, aliases=("A100", "A100 80GB")),
    _nvidia("A100 SXM4 40GB", (8, 0), 108, 1410, 40, 1555, 40, _A100, _A100_SHEET, 40960,
            42298834944, aliases=("A100 40GB",)),
    _nvidia("A100 PCIe 80GB", (8, 0), 108, 1410, 80, 1935, 40, _A100, _A100_SHEET, 81920,
            aliases=("A100 80GB PCIe",)),
    _nvidia("A100 PCIe 40GB", (8, 0), 108, 1410, 40, 1555, 40, _A100, _A100_SHEET, 40960),
    _nvidia("A30", (8, 0), 56, 1440, 24, 933, 24, _ampere_100(10.3, 165.0),
            "NVIDIA A30 datasheet", 24576),
    _nvidia("A10", (8, 6), 72, 1695, 24, 600, 6, _professional(31.2, 125.0, "int4"),
            "NVIDIA A10 datasheet", 23028),
    _nvidia("A10G", (8, 6), 80, 1710, 24, 600, 6,
            {"fp64": 0.49, "fp32": 31.5, "tf32": 35.0, "fp16": 70.0, "bf16": 70.0, "int8": 140.0,
             "int4": 280.0},
            "NVIDIA A10G datasheet (AWS G5)", 23028,
            note="matrix rates are half of those of the A10"),
    _nvidia("A40", (8, 6), 84, 1740, 48, 696, 6, _professional(37.4, 149.7, "int4"),
            "NVIDIA A40 datasheet", 46068),
    _nvidia("RTX A6000", (8, 6), 84, 1800, 48, 768, 6, _professional(38.7, 154.8, "int4"),
            "NVIDIA RTX A6000 datasheet; Ampere GA102 architecture white paper", 49140,
            aliases=("A6000",)),
    _nvidia("RTX 3060 12GB", (8, 6), 28, 1777, 12, 360, 3, _geforce(12.7, 25.5, "int4"),
            _GEFORCE_30, 12288, aliases=("3060",)),
    _nvidia("RTX 3080 10GB", (8, 6), 68, 1710, 10, 760, 5, _geforce(29.8, 59.5, "int4"),
            _GEFORCE_30, 10240, aliases=("3080",)),
    _nvidia("RTX 3090", (8, 6), 82, 1695, 24, 936, 6, _geforce(35.6, 71.2, "int4"),
            _GEFORCE_30, 24576),
    _nvidia("L4", (8, 9), 58, 2040, 24, 300, 48, _professional(30.3, 121.0, "fp8", "int4"),
            "NVIDIA L4 datasheet", 23034),
    _nvidia("L40S", (8, 9), 142, 2520, 48, 864, 96,
            {"fp64": 1.43, "fp32": 91.6, "tf32": 183.0, "fp16": 362.0, "bf16": 362.0, "fp8": 733.0,
             "int8": 733.0, "int4": 733.0},
            "NVIDIA L40S datasheet", 46068, note="int4 runs at the rate of int8"),
    _nvidia("L40", (8, 9), 142, 2490, 48, 864, 96,
            {"fp64": 1.41, "fp32": 90.5, "tf32": 90.5, "fp16": 181.0, "bf16": 181.0, "fp8": 362.0,
             "int8": 362.0, "int4": 724.0},
            "NVIDIA L40 datasheet", 46068,
            note="matrix rates are half of those of the L40S"),
    _nvidia("RTX 6000 Ada", (8, 9), 142, 2505, 48, 960, 96,
            _professional(91.1, 364.2, "fp8", "int4"), _GEFORCE_40, 49140,
            aliases=("RTX 6000 Ada Generation", "6000 Ada")),
    _nvidia("RTX 4060 Ti 16GB", (8, 9), 34, 2535, 16, 288, 32,
            _geforce(22.1, 44.1, "fp8", "int4"), _GEFORCE_40, 16380, aliases=("4060 Ti",)),
    _nvidia("RTX 4070", (8, 9), 46, 2475, 12, 504, 36, _geforce(29.1, 58.3, "fp8", "int4"),
            _GEFORCE_40, 12282),
    _nvidia("RTX 4080", (8, 9), 76, 2505, 16, 716.8, 64, _geforce(48.7, 97.5, "fp8", "int4"),
            _GEFORCE_40, 16376),
    _nvidia("RTX 4090", (8, 9), 128, 2520, 24, 1008, 72, _geforce(82.6, 165.2, "fp8", "int4"),
            _GEFORCE_40, 24564, round(23.64 * 2**30)),
    _nvidia("RTX 4090 Laptop", (8, 9), 76, 2040, 16, 576, 64,
            _geforce(39.7, 79.3, "fp8", "int4"), _GEFORCE_40, 16376,
            note="rates at the highest clock of the model; the power limit of the machine decides",
            aliases=("GeForce RTX 4090 Laptop GPU", "4090 Mobile")),
    _nvidia("H100 SXM5 80GB", (9, 0), 132, 1980, 80, 3350, 50, _H100_SXM, _H100_SHEET, 81559,
            aliases=("H100", "H100 80GB HBM3", "H100 SXM")),
    _nvidia("H100 PCIe 80GB", (9, 0), 114, 1755, 80, 2039, 50, _hopper(51.2, 51.2, 756.0),
            _H100_SHEET, 81559, aliases=("H100 PCIe",)),
    _nvidia("H100 NVL 94GB", (9, 0), 132, 1785, 94, 3938, 50, _hopper(60.0, 60.0, 835.0),
            _H100_SHEET, 95830, aliases=("H100 NVL",)),
    _nvidia("H200 SXM 141GB", (9, 0), 132, 1980, 141, 4800, 50, _H100_SXM,
            "NVIDIA H200 datasheet", 143771, aliases=("H200", "H200 SXM5")),
    _nvidia("GH200 96GB", (9, 0), 132, 1980, 96, 4000, 50, _H100_SXM,
            "NVIDIA GH200 datasheet", 97871, aliases=("GH200", "GH200 480GB", "GH200 120GB")),
    _nvidia("GH200 144GB", (9, 0), 132, 1980, 144, 4900, 50, _H100_SXM,
            "NVIDIA GH200 datasheet", aliases=("GH200 144G HBM3e",)),
    _nvidia("B200", (10, 0), 148, 1965, 180, 7672, 126.5,
            {"fp64": 37.0, "fp32": 75.0, "tf32": 1125.0, "fp16": 2250.0, "bf16": 2250.0,
             "fp8": 4500.0, "fp4": 9000.0, "int8": 4500.0},
            "NVIDIA HGX B200 specifications, an eighth of the board", 183359, round(178.35 * 2**30),
            note="sold as 180 and as 192 GB; the driver gives 178 GiB"),
    _nvidia("B300", (10, 3), 148, 1920, 270, 7700, 126.5,
            {"fp64": 1.25, "fp32": 75.0, "tf32": 1125.0, "fp16": 2250.0, "bf16": 2250.0,
             "fp8": 4500.0, "fp4": 13500.0, "int8": 125.0},
            "NVIDIA HGX B300 specifications, an eighth of the board", 275040,
            note="sold as 270 and as 288 GB; 13 to 15 PFLOPS in fp4 are stated",
            aliases=("B300 SXM6 AC",)),
    _nvidia("RTX PRO 6000 Blackwell", (12, 0), 188, 2617, 96, 1792, 128,
            _professional(126.0, 503.8, "fp8", "fp4"), _GEFORCE_50, 97887,
            note="rates of the Workstation Edition; Max-Q and Server Edition (1597 GB/s) have less",
            aliases=("RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000",
                     "RTX PRO 6000 Blackwell Max-Q Workstation Edition",
                     "RTX PRO 6000 Blackwell Server Edition")),
    _nvidia("RTX 5080", (12, 0), 84, 2617, 16, 960, 64, _geforce(56.3, 112.6, "fp8", "fp4"),
            _GEFORCE_50, 16303),
    _nvidia("RTX 5090", (12, 0), 170, 2407, 32, 1792, 96, _geforce(104.8, 209.5, "fp8", "fp4"),
            _GEFORCE_50, 32607, 33680457728),
)  # fmt: skip


def _amd(
    name: str,
    architecture: str,
    units: int,
    boost_mhz: int,
    memory_gb: int,
    bandwidth: float,
    l2: int,
    multiprocessor: Multiprocessor,
    rates: dict[str, float],
    source: str,
    note: str = "",
) -> Device:
    """A row; memory is whole GiB, of which ROCm reports almost all."""
    return Device(
        name,
        "AMD",
        architecture,
        None,
        units,
        multiprocessor,
        boost_mhz,
        memory_gb,
        memory_gb << 30,
        None,
        round(bandwidth * 10**9),
        l2 * MIB,
        MappingProxyType({dtype: rate * 1e12 for dtype, rate in rates.items()}),
        source,
        note,
    )


_CDNA2: Final = _unit(512, 16, 64)
_CDNA3: Final = _unit(512, 32, 64)
_MI300: Final = {
    "fp64": 163.4,
    "fp32": 163.4,
    "tf32": 653.7,
    "fp16": 1307.4,
    "bf16": 1307.4,
    "fp8": 2614.9,
    "int8": 2614.9,
}

_AMD: Final = (
    _amd("MI250X", "CDNA 2", 110, 1700, 64, 1638.4, 8, _CDNA2,
         {"fp64": 47.85, "fp32": 47.85, "fp16": 191.5, "bf16": 191.5, "int8": 191.5, "int4": 191.5},
         "AMD Instinct MI250X data sheet, half of the card",
         note="one of its two dies, which is the device that torch sees"),
    _amd("MI300X", "CDNA 3", 304, 2100, 192, 5325, 32, _CDNA3, _MI300,
         "AMD Instinct MI300X data sheet"),
    _amd("MI325X", "CDNA 3", 304, 2100, 256, 6000, 32, _CDNA3, _MI300,
         "AMD Instinct MI325X data sheet"),
)  # fmt: skip

#: All devices. If a short name matches several, it means the first.
DEVICES: Final = _NVIDIA + _AMD
