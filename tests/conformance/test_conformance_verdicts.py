"""What the installed libraries do, compared with what the catalogue expects of them.

For the version that the expectations were measured with, every verdict is as expected, including
known differences. For other versions only the conventions that must be equal are checked.
"""

from functools import lru_cache

import pytest
from shorthands import find_convention

from qtui_core.conformance.catalogue import LIBRARIES, find_library
from qtui_core.conformance.convention import Finding, LibraryReport, Verdict
from qtui_core.conformance.run import check_libraries

pytestmark = pytest.mark.slow

CONVENTIONS = [convention.id for library in LIBRARIES for convention in library.conventions]


@lru_cache
def report_of(library: str) -> LibraryReport:
    """What was compared of a library, once, in a process like that of `qtui doctor`."""
    return check_libraries([find_library(library)])[0]


@pytest.mark.parametrize("id", CONVENTIONS)
def test_verdict_and_the_numbers_that_it_comes_from(id):
    convention, library = find_convention(id), find_library(id.partition(".")[0])
    report = report_of(library.name)
    if report.version is None:
        pytest.skip(f"{library.name} is not installed")
    if not convention.applies_to(report.version):
        pytest.skip(f"said of {library.name} {convention.since} and later")
    outcome = report.outcomes[id]
    assert outcome.verdict is not Verdict.FAILED, outcome.message
    if report.version.partition("+")[0] == library.tested:
        assert outcome.verdict is convention.expected, outcome
    else:
        assert Finding(convention, outcome).holds is not False, outcome
    if outcome.example.startswith("Refused"):
        assert outcome.compared == 0
        return
    assert outcome.compared > 0
    differs = outcome.verdict is Verdict.DIFFERS
    assert (outcome.values_different > 0) == differs
    if differs:
        assert outcome.example
    else:
        assert outcome.largest_difference == 0
    if outcome.verdict is Verdict.BYTE_EQUAL:
        assert outcome.different == outcome.scales_different == 0


def test_torch_saturates_since_2_12():
    """Before, values above 464 become NaN."""
    report = report_of("torch")
    saturates = tuple(int(n) for n in report.version.split(".")[:2]) >= (2, 12)
    assert (report.outcomes["torch.e4m3"].verdict is Verdict.BYTE_EQUAL) is saturates
