"""The tape compared with traces of the installed classes, over a grid of plans.

python -m tests.bench.memory_drift [--processes N]

Errors are the tape's bytes less the trace's, in percent of the trace's: of the peak, and of the
phase in which they differ most.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))

from drift import Agreement, compare
from plan_grid import grid


def table(processes: int) -> Iterator[str]:
    yield f"{'peak':>9} {'a phase':>9}  plan, and the first operation that differs"
    found: list[Agreement] = []
    for case, agreement in compare(grid(), processes):
        if agreement.failed:
            yield f"{'–':>9} {'–':>9}  {case.name}: {agreement.failed}"
            continue
        found.append(agreement)
        yield f"{agreement.error:+9.4f} {agreement.worst_phase:+9.4f}  {case.name}"
        if agreement.difference:
            yield f"{'':21}{agreement.difference}"
    errors = [abs(agreement.error) for agreement in found]
    within = sum(error <= 0.05 for error in errors)
    alike = sum(agreement.difference is None for agreement in found)
    yield (
        f"{len(found)} plans: {alike} alike operation by operation, {within} within 0.05 % of the "
        f"peak, median {statistics.median(errors):.4f} %, worst {max(errors):.4f} %"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    for line in table(parser.parse_args().processes):
        print(line, flush=True)
