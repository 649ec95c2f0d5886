"""What of a plan the installed libraries cannot show, and a trace therefore refuses."""

from __future__ import annotations

from qtui_core.errors import UsageError
from qtui_core.memory.plan.run_plan import RunPlan

_LOSSES = ("stock", "stock-4.48")
#: Each is a forward pass of its own.
_MOST_TOKENS = 16


def check_traceable(plan: RunPlan) -> None:
    """Raises UsageError for a plan that a trace would not follow, naming what and what to do."""
    reasons = {
        f"--loss {plan.loss} (a trace runs {' and '.join(_LOSSES)})": plan.loss not in _LOSSES,
        "more than one GPU": plan.gpus > 1,
        "fused kernels": plan.kernels != "torch",
        "keys and values repeated by hand": plan.repeat_kv,
        f"more than {_MOST_TOKENS} generated tokens": plan.generate > _MOST_TOKENS,
        "paged optimizer states": plan.optimizer.startswith("paged"),
        "4-bit optimizer states, whose step is compiled": plan.optimizer == "adamw4bit",
    }
    found = [what for what, present in reasons.items() if present]
    if found:
        raise UsageError(
            f"A trace runs the installed libraries on one fake GPU, which does not show "
            f"{', '.join(found)}; leave that out of the plan, or leave out --trace."
        )
