"""The grid on the GPU of this machine, case by case. Skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu.grid import BOUNDS, CASES, Case, run

from qtui_core.telemetry.readings import read_devices

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not read_devices(), reason="no GPU: the driver shows none"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_step_takes_what_was_estimated(case: Case, tmp_path: Path) -> None:
    row = run(case, tmp_path)
    if "does not fit" in row.failed:
        pytest.skip(row.failed)
    assert not row.failed
    assert set(row.errors) == set(BOUNDS)
    for level, bound in BOUNDS.items():
        assert abs(row.errors[level]) <= bound, (level, row.phases)
