"""The estimate compared with runs that others measured on GPUs, row by row: errors are ours less
measured, in percent, with a median and a worst row of each level.

python -m tests.bench.memory_accuracy
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))

from measured_rows import MeasuredRow, measured_rows

from qtui_core.memory.estimate import estimate

LEVELS = ("resident", "allocated", "reserved", "process")


def percent(ours: int | None, measured: int | None) -> float | None:
    """By how many percent the first is above the second."""
    return None if not ours or not measured else 100 * (ours - measured) / measured


def errors_of(row: MeasuredRow) -> tuple[dict[str, float | None], str]:
    """(the error of the estimate at each level that was measured, the phase of its peak)."""
    found = estimate(row.shape, row.plan, row.device)
    return {
        "resident": percent(found.resident_bytes, row.resident) if row.stepped else None,
        "allocated": percent(found.peak_allocated_bytes, row.allocated),
        "reserved": percent(found.peak_reserved_bytes, row.reserved),
        "process": percent(found.process_bytes, row.process),
    }, found.peak_phase


def table() -> Iterator[str]:
    yield " ".join(f"{level:>9}" for level in LEVELS) + "  run"
    errors: dict[str, list[float]] = {level: [] for level in LEVELS}
    for row in measured_rows():
        found, phase = errors_of(row)
        cells = (f"{e:+9.3f}" if e is not None else f"{'–':>9}" for e in found.values())
        plan = row.plan
        yield (
            f"{' '.join(cells)}  {plan.method} {row.model.rpartition('/')[2]} "
            f"{plan.batch}x{plan.sequence} {plan.attention} loss {plan.loss} kernels "
            f"{plan.kernels} prep {plan.kbit_prep} torch {plan.torch} {row.device.name}, peak in "
            f"{phase}"
        )
        for level, error in found.items():
            errors[level] += [] if error is None else [abs(error)]
    for level, sizes in errors.items():
        yield (
            f"{level:22} median {statistics.median(sizes):8.3f} %  worst {max(sizes):8.3f} %  "
            f"of {len(sizes)} rows"
        )


if __name__ == "__main__":
    for line in table():
        print(line)
