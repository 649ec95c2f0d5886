"""The estimate against 100 runs that others measured on a T4 and an A100 (tests/memory/measured;
`python -m tests.bench.memory_accuracy` prints them one by one).

What is not within the aim is named here: one run whose reserved bytes hang on how far threads had
read ahead when weights were quantized. Of twelve such races told with other times two end where
it did, ten 800 MiB above.
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
RACE = "fitcheck-t4-2026-09-16-eager-nf4-fp16-adamw-r32-ckpt-HuggingFaceTB_SmolLM2-1.7B-bs1-seq2048"


def errors(level: str, rows: tuple[MeasuredRow, ...] | None = None) -> dict[str, float]:
    """The errors of the estimate in percent, for each row that was measured at a level."""
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
def test_peak_allocated_is_within_three_tenths_of_a_percent_and_mostly_exact():
    found = errors("allocated").values()
    assert max(found) < 0.3
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
    found = errors("reserved")
    assert median(found.values()) < 0.1
    assert {name for name, error in found.items() if error > 4.5} == {RACE}
    assert found[RACE] < 17.5


@pytest.mark.slow
def test_the_process():
    found = errors("process")
    assert median(found.values()) < 0.25
    # 1,250 MiB that one session on the A100 additionally held are not explained.
    assert {name for name, error in found.items() if error > 8.6} == {RACE}
    session = [error for name, error in found.items() if "fms-a100_80gb_liger" in name]
    assert len(session) == 19
    assert median(session) < 0.2
    assert max(session) < 0.9


@pytest.mark.parametrize("number", [52, 62, 72, 88, 90])
def test_some_rows_to_the_byte(number):
    """LoRA with each kind of attention: every allocation of two steps, and each segment."""
    row = measured_rows()[number]
    found = of(row)
    assert T4_LORA in row.id
    assert found.peak_allocated_bytes == row.allocated
    assert found.peak_reserved_bytes == row.reserved
    assert found.process_bytes == row.process
