"""By which objective schemes are chosen if nobody says so: by the size of the model, and by what
can run here."""

from __future__ import annotations

from typing import Final

from qtui_core.errors import QtuiError
from qtui_core.extras import require
from qtui_core.inspection.sensitivity.report import Objective
from qtui_core.models import ModelSource
from qtui_core.quantities import format_count

#: Tokens that the model reads for `kl` and `fisher`: 8 windows of 256.
TOKENS: Final = 2048
#: The most operations of an objective that is chosen unasked. A CPU core does some 5 * 10^10 a
#: second, so `kl` takes a minute on two cores, and `fisher` a quarter of an hour.
KL_OPERATIONS: Final = 5 * 10**12
FISHER_OPERATIONS: Final = 10**14
#: Operations for each parameter and token: two forwards; four more backwards, and two for the
#: forward pass of a layer that is run again.
_FORWARD: Final = 2
_BACKWARD: Final = 8


def usual_objective(
    source: ModelSource, options: int, *, asked: bool = False
) -> tuple[Objective, str]:
    """The objective, and a part of a sentence that says why the model is not run; "" if it is.

    Args:
        options: how many ways to store one tensor there are, of all tensors together.
        asked: whether the model must be run, as a text was named for it.
    """
    each = source.parameters * TOKENS
    # Of a changed model, the layers after the changed tensor run: half of them.
    if _FORWARD * each * options // 2 <= KL_OPERATIONS:
        return _if_it_runs(source, "kl", asked=asked)
    if asked or _BACKWARD * each <= FISHER_OPERATIONS:
        return _if_it_runs(source, "fisher", asked=asked)
    return "weights", (
        f"{format_count(source.parameters)} parameters take longer than a quarter of an hour: "
        f"--objective fisher runs them all the same"
    )


def _if_it_runs(source: ModelSource, objective: Objective, *, asked: bool) -> tuple[Objective, str]:
    if asked:
        return objective, ""
    if source.config is None:
        return "weights", "there is no config.json to run the model by"
    try:
        require(f"--objective {objective}", "torch", "transformers")
    except QtuiError as error:
        return "weights", str(error)
    return objective, ""
