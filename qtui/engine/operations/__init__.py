"""What the engine can be asked for, one file for each kind of question.

An operation is a function of the session and the task: it reads its parameters from the task
and answers with JSON and pictures. What is computed is computed by qtui_core. Each module
lists its operations as `OPERATIONS`, name -> (function, lane): "view" is what takes seconds,
"quick" what the cursor waits for, "background" what may take minutes.
"""

from __future__ import annotations

from functools import partial

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
from qtui.engine.task import EngineOperation

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
    session = Session()
    return {
        name: EngineOperation(partial(run, session), lane)
        for module in MODULES
        for name, (run, lane) in module.OPERATIONS.items()
    }
