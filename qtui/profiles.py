"""Profiles of this machine's GPUs from `qtui calibrate`: read, written, applied."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from qtui_core.errors import QtuiError, UsageError
from qtui_core.files import target_of
from qtui_core.memory.devices.device import Device, find_device

if TYPE_CHECKING:
    from qtui_core.memory.devices.profile import Profile


def profile_path(device: str) -> Path:
    """The file for a device, which is named as in the catalogue or by its driver; in the folder
    ~/.local/share/qtui/profiles on Linux."""
    from platformdirs import user_data_path

    with suppress(UsageError):  # of no catalogue
        device = find_device(device).name
    slug = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") or "gpu"
    return user_data_path("qtui", appauthor=False) / "profiles" / f"{slug}.json"


def read_profile(device: str) -> Profile | None:
    """The profile of a device; None if there is none. Raises QtuiError for a file that cannot be
    read or is no profile."""
    path = profile_path(device)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise QtuiError(f"The profile {path} cannot be read: {error}.") from error
    # Imported only here: most machines have no profile, and the import would slow each estimate.
    from qtui_core.memory.devices.profile import profile_of

    try:
        return profile_of(text)
    except QtuiError as error:
        raise QtuiError(f"The profile {path} cannot be used. {error}") from error


def write_profile(profile: Profile) -> Path:
    """Writes the profile, replacing an older one of the same device, and returns its path. Raises
    QtuiError if it cannot be written."""
    path = profile_path(profile.device)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target_of(str(path), force=True).write(profile.to_json())
    except (OSError, QtuiError) as error:
        raise QtuiError(f"The profile {path} cannot be written: {error}.") from error
    return path


def calibrated(device: Device) -> Device:
    """The device with the values that its profile measured on this machine; unchanged without a
    profile. A profile that cannot be used is ignored, and the log says so."""
    try:
        profile = read_profile(device.name)
    except QtuiError as error:
        import logging

        from qtui_core.models.quoting import printable

        logging.getLogger("qtui.profiles").warning("%s", printable(str(error)))
        return device
    return device if profile is None else replace(device, calibration=profile.calibration)
