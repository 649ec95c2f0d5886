"""What the installed libraries do, compared with what the catalogue expects of them.

For the version that the expectations were measured with, every verdict is as expected, including
known differences. For other versions only the conventions that must be equal are checked.
"""

from __future__ import annotations

import pytest
from shorthands import find_convention

from qtui_core.conformance.catalogue import LIBRARIES, find_library
from qtui_core.conformance.convention import Finding, Verdict

pytestmark = pytest.mark.slow

CONVENTIONS = [convention.id for library in LIBRARIES for convention in library.conventions]


def is_tested(library: str, version: str) -> bool:
    return version.partition("+")[0] == find_library(library).tested


@pytest.mark.parametrize("id", CONVENTIONS)
def test_verdict(id, report_of):
    convention = find_convention(id)
    library = id.partition(".")[0]
    report = report_of(library)
    if not convention.applies_to(report.version):
        pytest.skip(f"said of {library} {convention.since} and later")
    outcome = report.outcomes[id]
    if is_tested(library, report.version):
        assert outcome.verdict is convention.expected, outcome
    else:
        assert outcome.verdict is not Verdict.FAILED, outcome.message
        assert Finding(convention, outcome).holds is not False, outcome


@pytest.mark.parametrize("id", CONVENTIONS)
def test_a_verdict_comes_from_numbers(id, report_of):
    outcome = report_of(id.partition(".")[0]).outcomes[id]
    if outcome.verdict is Verdict.FAILED:
        pytest.skip("nothing was compared, and the other test says so")
    if outcome.example.startswith("Refused"):
        assert outcome.compared == 0
        return
    assert outcome.compared > 0
    if outcome.verdict is Verdict.DIFFERS:
        assert outcome.values_different > 0
        assert outcome.example
    else:
        assert outcome.values_different == 0
        assert outcome.largest_difference == 0
    if outcome.verdict is Verdict.BYTE_EQUAL:
        assert outcome.different == outcome.scales_different == 0


def test_torch_saturates_since_2_12(report_of):
    """Before, values above 464 become NaN."""
    report = report_of("torch")
    saturates = tuple(int(n) for n in report.version.split(".")[:2]) >= (2, 12)
    assert (report.outcomes["torch.e4m3"].verdict is Verdict.BYTE_EQUAL) is saturates
