"""The estimate against 100 runs that others measured on a T4 and an A100 (tests/memory/measured;
`python -m tests.bench.memory_accuracy` prints them one by one).

What is not within the aim is named here. Weights that were quantized while threads read the next
ones: a race that the estimate does not run, and transformers no longer does. And what the driver
said of runs on the A100 with a cross entropy in place, about one float32 copy of the logits more
than these runs ever held at once by torch's own count.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from qtui_core.memory.estimate import Estimate, estimate

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))

from measured_rows import MeasuredRow, measured_rows

T4_LORA = "-none-fp16-"


def errors(level: str, rows: tuple[MeasuredRow, ...] | None = None) -> dict[str, float]:
    """Percent by which the estimate of each row that was measured at a level is off it."""
    found: dict[str, float] = {}
    for row in measured_rows() if rows is None else rows:
        measured = getattr(row, level)
        if measured and (level != "resident" or row.stepped):
            ours = getattr(of(row), _FIELDS[level])
            found[row.id] = 100 * abs(ours - measured) / measured
    assert found
    return found


_FIELDS = {
    "resident": "resident_bytes",
    "allocated": "peak_allocated_bytes",
    "reserved": "peak_reserved_bytes",
    "process": "process_bytes",
}


@cache
def _estimated(number: int) -> Estimate:
    row = measured_rows()[number]
    return estimate(row.shape, row.plan, row.device)


def of(row: MeasuredRow) -> Estimate:
    return _estimated(measured_rows().index(row))


@pytest.mark.slow
def test_resident_bytes_are_within_a_tenth_of_a_percent():
    assert max(errors("resident").values()) < 0.1


@pytest.mark.slow
def test_peak_allocated_is_within_a_quarter_of_a_percent_and_mostly_exact():
    found = errors("allocated").values()
    assert max(found) < 0.25
    assert median(found) < 0.01


@pytest.mark.slow
def test_reserved_bytes_of_unquantized_runs_are_within_half_a_percent():
    rows = tuple(row for row in measured_rows() if T4_LORA in row.id)
    found = errors("reserved", rows).values()
    assert len(found) == 24
    assert max(found) < 0.5
    assert sum(error == 0 for error in found) >= 18


@pytest.mark.slow
def test_reserved_bytes_of_quantized_runs():
    first = tuple(row for row in measured_rows() if "t4-2026-09-01" in row.id)
    assert median(errors("reserved", first).values()) == 0
    assert max(errors("reserved", first).values()) < 1
    *others, worst = sorted(errors("reserved").values())
    assert median([*others, worst]) < 0.3
    assert others[-1] < 7
    assert worst < 15.5


@pytest.mark.slow
def test_the_process():
    found = errors("process")
    assert median(found.values()) < 1.3
    beyond = {name for name, error in found.items() if error > 10}
    assert all("fms-a100" in name or "SmolLM2-1.7B-bs1-seq2048" in name for name in beyond)
    assert len(beyond) <= 10
    assert max(found.values()) < 17.5


@pytest.mark.parametrize("number", [52, 62, 72, 88, 90])
def test_some_rows_to_the_byte(number):
    """LoRA with each attention: every allocation of two steps, and each segment that was taken."""
    row = measured_rows()[number]
    found = of(row)
    assert T4_LORA in row.id
    assert found.peak_allocated_bytes == row.allocated
    assert found.peak_reserved_bytes == row.reserved
    assert found.process_bytes == row.process
