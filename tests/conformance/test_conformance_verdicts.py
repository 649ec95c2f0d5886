"""What the installed libraries do, compared with what the catalogue expects of them.

For the version that the expectations were measured with, every verdict is as expected, including
known differences. For other versions only the conventions that must be equal are checked.
"""

from __future__ import annotations

import pytest
from shorthands import find_convention

from qtui_core.conformance.catalogue import LIBRARIES, find_library
from qtui_core.conformance.convention import Verdict

pytestmark = pytest.mark.slow

CONVENTIONS = [convention.id for library in LIBRARIES for convention in library.conventions]
FAULTS = [fault.id for library in LIBRARIES for fault in library.faults]


def is_tested(library: str, version: str) -> bool:
    return version.partition("+")[0] == find_library(library).tested


@pytest.mark.parametrize("id", CONVENTIONS)
def test_verdict(id, report_of):
    convention = find_convention(id)
    report = report_of(convention.library)
    if not convention.applies_to(report.version):
        pytest.skip(f"said of {convention.library} {convention.since} and later")
    outcome = next(o for o in report.outcomes if o.id == id)
    if is_tested(convention.library, report.version):
        assert outcome.verdict is convention.expected, outcome
    else:
        assert outcome.verdict is not Verdict.FAILED, outcome.message
        assert outcome.holds(convention) is not False, outcome


@pytest.mark.parametrize("id", CONVENTIONS)
def test_a_verdict_comes_from_numbers(id, report_of):
    outcome = next(o for o in report_of(id.partition(".")[0]).outcomes if o.id == id)
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


@pytest.mark.parametrize("id", FAULTS)
def test_faults_are_probed(id, report_of):
    library = id.partition(".")[0]
    report = report_of(library)
    probed = next(p for p in report.faults if p.id == id)
    if is_tested(library, report.version):
        assert probed.present is not None, probed.detail
    assert probed.detail


def test_torch_saturates_since_2_12(report_of):
    """Depending on the version, values above 464 become 448 or NaN."""
    report = report_of("torch")
    faults = {p.id: p.present for p in report.faults}
    saturates = tuple(int(n) for n in report.version.split(".")[:2]) >= (2, 12)
    assert faults["torch.e4m3-overflow"] is not saturates
    assert faults["torch.e4m3-infinity"] is saturates
