"""What the engine can be asked for, one file for each kind of question.

An operation is a function of the session and the task, whose `asked` is the request; it answers
with a dataclass. What is computed is computed by qtui_core. Each module lists its operations as
`OPERATIONS`, name -> (function, lane, class of the request): "view" is what takes seconds, "quick"
what the cursor waits for, "background" what may take minutes.
"""

from __future__ import annotations

from qtui.engine.operations import (
    activations,
    codebooks,
    errors,
    layer_errors,
    maps,
    models,
    outliers,
    ranking,
)
from qtui.engine.operations.session import Session
from qtui.engine.task import EngineOperation, operations_on

MODULES = (
    models,
    errors,
    maps,
    ranking,
    codebooks,
    outliers,
    activations,
    layer_errors,
)


def build_operations() -> dict[str, EngineOperation]:
    """The operations by name, bound to one session."""
    return operations_on(Session(), *(module.OPERATIONS for module in MODULES))
