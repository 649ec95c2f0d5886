"""The checks of each library: functions that run both sides of a convention on its numbers, and
probes that tell whether a fault is present on this machine, with a figure that shows it. Rows of
the catalogue name these functions. Each module imports its library."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from qtui_core.conformance.convention import Library


def checks_of(library: Library) -> ModuleType:
    """The module with the functions that the rows of a library name."""
    return import_module(f"{__name__}.{library.name.replace('-', '_')}")
