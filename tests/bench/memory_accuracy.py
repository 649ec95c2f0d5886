"""The estimate compared with runs that others measured on GPUs, row by row, and with other
estimators.

python -m tests.bench.memory_accuracy

Errors are ours less measured, in percent. Each level has a median and a worst row. accelerate's
estimate-memory and fitcheck-llm are included at the levels that they estimate, if they can be
imported.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))
sys.path.insert(0, str(Path(__file__).parent))

from measured_rows import MeasuredRow, measured_rows
from other_estimators import OTHERS, Figures

from qtui_core.memory.estimate import estimate

LEVELS = ("resident", "allocated", "reserved", "process")


@dataclass(frozen=True)
class Errors:
    """Errors in percent at each level; None if it was not measured. `seconds` is the estimate's."""

    resident: float | None
    allocated: float
    reserved: float | None
    process: float | None
    phase: str
    seconds: float


def errors_of(row: MeasuredRow) -> Errors:
    """The errors of the estimate of one row."""
    begun = time.perf_counter()
    found = estimate(row.shape, row.plan, row.device)
    seconds = time.perf_counter() - begun
    allocated = percent(found.peak_allocated_bytes, row.allocated)
    assert allocated is not None
    return Errors(
        resident=percent(found.resident_bytes, row.resident) if row.stepped else None,
        allocated=allocated,
        reserved=percent(found.peak_reserved_bytes, row.reserved),
        process=percent(found.process_bytes, row.process),
        phase=found.peak_phase,
        seconds=seconds,
    )


def percent(ours: int | None, measured: int | None) -> float | None:
    """By how many percent the first is above the second."""
    return None if not ours or not measured else 100 * (ours - measured) / measured


def table() -> Iterator[str]:
    rows = [(row, errors_of(row)) for row in measured_rows()]
    others = {name: [_theirs(row, figures) for row, _ in rows] for name, figures in OTHERS}
    heads = " ".join(f"{level:>9}" for level in LEVELS)
    heads += "".join(f" {name[:5] + ' alloc':>12} {name[:5] + ' proc':>11}" for name in others)
    yield f"Errors in percent, estimated minus measured.\n{heads}  run"
    for number, (row, errors) in enumerate(rows):
        cells = " ".join(_cell(getattr(errors, level)) for level in LEVELS)
        for found in others.values():
            allocated, process = found[number]
            cells += f" {_cell(allocated):>12} {_cell(process):>11}"
        yield f"{cells}  {_run(row, errors)}"
    for level in LEVELS:
        yield _summary(f"qtui, {level}", [getattr(errors, level) for _, errors in rows])
    for name, found in others.items():
        for index, level in enumerate(("allocated", "process")):
            if any(pair[index] is not None for pair in found):
                yield _summary(f"{name}, {level}", [pair[index] for pair in found])
        if not any(found_at is not None for pair in found for found_at in pair):
            yield f"{name} is not installed here."
    seconds = [errors.seconds for _, errors in rows]
    yield (
        f"One estimate with the allocator takes {1000 * statistics.median(seconds):.0f} ms in the "
        f"median, {1000 * max(seconds):.0f} ms at most, on this machine now."
    )


def _theirs(row: MeasuredRow, figures: Figures) -> tuple[float | None, float | None]:
    """The errors of another estimator: allocated, process."""
    allocated, process = figures(row)
    return percent(allocated, row.allocated), percent(process, row.process)


def _run(row: MeasuredRow, errors: Errors) -> str:
    plan = row.plan
    return (
        f"{plan.method} {row.model.rpartition('/')[2]} {plan.batch}x{plan.sequence} "
        f"{plan.attention} loss {plan.loss} kernels {plan.kernels} prep {plan.kbit_prep} torch "
        f"{plan.torch} {row.device.name}, peak in {errors.phase}"
    )


def _summary(name: str, errors: Sequence[float | None]) -> str:
    found = [abs(error) for error in errors if error is not None]
    return (
        f"{name:22} median {statistics.median(found):8.3f} %  worst {max(found):8.3f} %  "
        f"of {len(found)} rows"
    )


def _cell(error: float | None) -> str:
    return f"{error:+9.3f}" if error is not None else f"{'–':>9}"


if __name__ == "__main__":
    for line in table():
        print(line)
