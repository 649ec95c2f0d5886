"""The operations of the engine, one module for each kind.

An operation is a function of the session and the task, whose `asked` is the request. It calls
qtui_core and returns a dataclass. `OPERATIONS` of each module lists them: name -> (function, lane,
class of the request). The lane "quick" is for what the cursor waits for, "view" for seconds,
"background" for minutes.
"""

from __future__ import annotations

from qtui.engine.operations import (
    activations,
    codebooks,
    errors,
    evaluation,
    maps,
    models,
    outliers,
)
from qtui.engine.operations.session import Session
from qtui.engine.task import EngineOperation, operations_on

MODULES = (
    models,
    errors,
    maps,
    codebooks,
    outliers,
    activations,
    evaluation,
)


def build_operations() -> dict[str, EngineOperation]:
    """The operations by name, bound to one session."""
    return operations_on(Session(), *(module.OPERATIONS for module in MODULES))
