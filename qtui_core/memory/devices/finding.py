"""Finds GPUs by the names that people type and drivers report."""

from __future__ import annotations

import re

from qtui_core.errors import UsageError
from qtui_core.memory.devices.catalog import DEVICES
from qtui_core.memory.devices.device import Device, Multiprocessor
from qtui_core.quantities import shortened

#: Words that do not distinguish one device from another.
_COMMON = frozenset(
    ("nvidia", "amd", "geforce", "tesla", "quadro", "instinct", "gpu", "generation", "rtx")
)


def find_device(name: str) -> Device:
    """The device with a name: in any case, with or without vendor, "GeForce", "Tesla", spaces and
    dashes, as the driver reports it or as people write it ("4090", "a100-80", "H100").

    If several devices match, the first in the catalogue is taken, which is the most common. Raises
    UsageError for an unknown name, with the nearest known ones.
    """
    known: dict[str, Device] = {}
    for device in DEVICES:
        for label in (device.name, *device.aliases):
            known.setdefault(_key(label), device)
    key = _key(name)
    if key in known:
        return known[key]
    words = _words(name)
    for device in DEVICES:
        if words and any(words <= _words(label) for label in (device.name, *device.aliases)):
            return device
    # Imported only if a name is not found.
    from difflib import get_close_matches

    near = get_close_matches(key, known, n=4, cutoff=0.5)
    offered = list(dict.fromkeys(known[match].name for match in near))
    if not words:  # "RTX" is part of many names
        text = name.strip().lower()
        offered = [device.name for device in DEVICES if text and text in device.name.lower()][:6]
    near_it = f"Near it: {', '.join(offered)}."
    if not offered:
        near_it = f"It has {', '.join(device.name for device in DEVICES[:6])}, and others."
    raise UsageError(
        f"There is no GPU {shortened(name)!r} in the catalogue. {near_it} "
        "For another one, give its memory instead, as in --vram 24GiB."
    )


def _words(name: str) -> frozenset[str]:
    """The words of a name that distinguish devices; "80GB" gives "80", "RTX4090" gives "rtx",
    "4090"."""
    text = re.sub(r"(?<=\d)\s*gi?b\b", "", name.lower())
    text = re.sub(r"\b(rtx|gtx)(?=\d)", r"\1 ", text)
    words = re.findall(r"[a-z0-9]+", text)
    return frozenset(words) - _COMMON


def _key(name: str) -> str:
    return " ".join(sorted(_words(name)))


def device_of_memory(nbytes: int) -> Device:
    """A GPU of which only the bytes that processes can have are known."""
    power, unit = (30, "GiB") if nbytes >= 1 << 30 else (20, "MiB")
    amount = nbytes / (1 << power)
    return Device(
        name=f"a GPU of {amount:.2f}".rstrip("0").rstrip(".") + f" {unit}",
        vendor="",
        architecture="",
        capability=None,
        multiprocessors=0,
        multiprocessor=Multiprocessor(0, 0, 0),
        boost_mhz=0,
        memory_gb=round(nbytes / 10**9),
        total=None,
        allocatable=nbytes,
        bandwidth=0,
        l2=0,
        rates={},
        source="as given",
    )
