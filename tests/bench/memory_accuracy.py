"""The estimate against runs that others measured on GPUs, row by row.

python -m tests.bench.memory_accuracy [--level allocated] [--csv]

Errors are ours minus measured in percent. Each level has a median and a worst row.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))

from measured_rows import MeasuredRow, measured_rows

from qtui_core.memory.estimate import estimate


@dataclass(frozen=True)
class Errors:
    """In percent at each level; None where it was not measured."""

    resident: float | None
    allocated: float
    reserved: float | None
    process: float | None
    phase: str


def errors_of(row: MeasuredRow) -> Errors:
    """The estimate of one row beside what was measured."""
    found = estimate(row.shape, row.plan, row.device)

    def percent(ours: int | None, measured: int | None) -> float | None:
        return None if not ours or not measured else 100 * (ours - measured) / measured

    allocated = percent(found.peak_allocated_bytes, row.allocated)
    assert allocated is not None
    return Errors(
        resident=percent(found.resident_bytes, row.resident) if row.stepped else None,
        allocated=allocated,
        reserved=percent(found.peak_reserved_bytes, row.reserved),
        process=percent(found.process_bytes, row.process),
        phase=found.peak_phase,
    )


def table() -> Iterator[str]:
    def cell(error: float | None) -> str:
        return f"{error:+9.3f}" if error is not None else f"{'–':>9}"

    rows = [(row, errors_of(row)) for row in measured_rows()]
    yield f"{'resident':>9} {'allocated':>9} {'reserved':>9} {'process':>9}  peak in    run"
    for row, errors in rows:
        plan = row.plan
        figures = (errors.resident, errors.allocated, errors.reserved, errors.process)
        yield (
            f"{' '.join(map(cell, figures))}  {errors.phase:10} {plan.method} "
            f"{row.model.rpartition('/')[2]} {plan.batch}x{plan.sequence} {plan.attention} "
            f"{plan.loss} prep {plan.kbit_prep} torch {plan.torch}"
        )
    for name, summary in (("median", statistics.median), ("worst", max)):
        yield f"{name} of the magnitudes:"
        for level in ("resident", "allocated", "reserved", "process"):
            found = [abs(e) for _, errors in rows if (e := getattr(errors, level)) is not None]
            yield f"  {level:10} {summary(found):7.3f} %  of {len(found)} rows"


if __name__ == "__main__":
    for line in table():
        print(line)
