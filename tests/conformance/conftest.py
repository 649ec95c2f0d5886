"""Each library is checked once per session, in a process like that of `qtui doctor`."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import pytest

from qtui_core.conformance.catalogue import find_library
from qtui_core.conformance.convention import LibraryReport
from qtui_core.conformance.run import check_libraries


@lru_cache
def _report(library: str) -> LibraryReport:
    return check_libraries([find_library(library)])[0]


@pytest.fixture
def report_of() -> Callable[[str], LibraryReport]:
    """What was compared of a library; the test is skipped where it is not installed."""

    def report(library: str) -> LibraryReport:
        found = _report(library)
        if found.version is None:
            pytest.skip(f"{library} is not installed")
        return found

    return report
