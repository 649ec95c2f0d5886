"""GPUs, found by the names that people type and drivers report."""

from __future__ import annotations

import re
from difflib import get_close_matches

from qtui_core.errors import UsageError
from qtui_core.memory.device import Device, Multiprocessor
from qtui_core.memory.device_catalog import DEVICES

#: Words of names that tell no device from another.
_COMMON = frozenset(
    ("nvidia", "amd", "geforce", "tesla", "quadro", "instinct", "gpu", "generation", "rtx")
)


def find(name: str) -> Device:
    """The device of a name, leniently: in any case, with or without vendor, "GeForce", "Tesla",
    spaces and dashes, as the driver reports it or as people say it ("4090", "a100-80", "H100").

    A name that leaves several open takes the first of the catalogue that it fits, which is the
    commonest. Raises UsageError for an unknown one, offering the nearest.
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
    near = get_close_matches(key, known, n=4, cutoff=0.5)
    offered = list(dict.fromkeys(known[match].name for match in near))
    if not offered:
        offered = [device.name for device in DEVICES][:6]
    raise UsageError(
        f"There is no GPU {name!r} in the catalogue. Near it: {', '.join(offered)}. "
        "For another one, give its memory instead."
    )


def _words(name: str) -> frozenset[str]:
    """The words of a name that tell devices apart; "80GB" is "80", "RTX4090" is "rtx", "4090"."""
    text = re.sub(r"(?<=\d)\s*gi?b\b", "", name.lower())
    text = re.sub(r"\b(rtx|gtx)(?=\d)", r"\1 ", text)
    words = re.findall(r"[a-z0-9]+", text)
    return frozenset(words) - _COMMON


def _key(name: str) -> str:
    return " ".join(sorted(_words(name)))


__all__ = ["DEVICES", "Device", "Multiprocessor", "find"]
