"""The estimator's child process: `python -m qtui.engine.estimator.child`.

It answers the requests of the Memory and the Hardware panel, with the protocol of the engine. It is
a process of its own because estimates are plain Python: it needs no torch, so it answers a moment
after its start, and keys wait for neither it nor the engine. With the argument "behind" it is the
second process, for long work, and has a lower priority.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from qtui.engine.estimator import estimates as of_memory
from qtui.engine.estimator import hardware as of_hardware
from qtui.engine.estimator.subjects import Estimates
from qtui.engine.task import EngineOperation, operations_on
from qtui.engine.worker import main

#: Niceness of the process for long work.
BEHIND: Final = 5


def build_operations() -> Mapping[str, EngineOperation]:
    """The operations by name, bound to one set of models."""
    return operations_on(Estimates(), of_memory.OPERATIONS, of_hardware.OPERATIONS)


if __name__ == "__main__":
    # Keys wait for the first process, so it has normal priority. The second one has a lower
    # priority, but not as low as the engine: users wait for it too.
    main(build_operations, niceness=BEHIND if sys.argv[1:] == ["behind"] else 0)
