"""Which function runs which convention or probe, by id."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

from qtui_core.conformance.compare import ConformanceSample
from qtui_core.conformance.convention import Convention

#: Runs both sides of a convention on the numbers it is about.
Check = Callable[[Convention], Iterable[ConformanceSample]]
#: Whether a fault is on this machine, and the figure that shows it.
Probe = Callable[[], tuple[bool, str]]

CHECKS: dict[str, Check] = {}
PROBES: dict[str, Probe] = {}


def check(*ids: str) -> Callable[[Check], Check]:
    """Registers a function as the check of these conventions."""

    def register(function: Check) -> Check:
        CHECKS.update(dict.fromkeys(ids, function))
        return function

    return register


def probe(id: str) -> Callable[[Probe], Probe]:
    """Registers a function as the probe of this fault."""

    def register(function: Probe) -> Probe:
        PROBES[id] = function
        return function

    return register


def load_checks(library: str) -> Any:
    """Imports the checks of a library, and the library with them."""
    return importlib.import_module(f"qtui_core.conformance.checks.{library.replace('-', '_')}")
