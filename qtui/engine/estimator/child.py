"""The estimator's child process: `python -m qtui.engine.estimator.child`.

It answers what the Memory and the Hardware panel ask, as the engine answers other panels, and
speaks as the engine does. It is a process of its own because estimates are plain Python: it needs
no torch, so that it answers a moment after it was started, and no key waits for it or for the
engine. With the argument "behind" it is the one for what may take long, and gives way to keys.
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

#: Niceness of the process for what may take long.
BEHIND: Final = 5


def build_operations() -> Mapping[str, EngineOperation]:
    """The operations by name, bound to one set of models."""
    return operations_on(Estimates(), of_memory.OPERATIONS, of_hardware.OPERATIONS)


if __name__ == "__main__":
    # Keys wait for the one, which gives way to nothing. The other gives way to it, but less than
    # the engine does: somebody waits for it too.
    main(build_operations, niceness=BEHIND if sys.argv[1:] == ["behind"] else 0)
