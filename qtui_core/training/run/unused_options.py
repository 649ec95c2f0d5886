"""Options of a plan that change nothing in a run, so that the user does not consider them
measured."""

from __future__ import annotations

from collections.abc import Collection

from qtui_core.memory.plan.options import ALL_LINEAR, RunPlan


def unused_options(asked: RunPlan, runs: RunPlan, device_type: str) -> str:
    """A sentence on options that were given, not left to their defaults, and change nothing;
    otherwise empty.

    Args:
        asked: the plan as it was given, with what was left open.
        runs: the resolved plan, for the torch that is installed.
        device_type: "cpu" or "cuda".
    """
    found: dict[str, list[str]] = {}
    for option in asked.without_effect(runs):
        found.setdefault(option.idle, []).append(option.flag)
    if device_type == "cpu" and asked.segments != RunPlan().segments:
        found["a CPU has no allocator with segments"] = ["--segments"]
    if asked.torch not in (RunPlan().torch, runs.torch):
        found[f"torch {runs.torch} is installed and runs"] = ["--torch"]
    told = [f"{', '.join(flags)} ({why})" for why, flags in found.items()]
    return f"Without effect in this run: {'; '.join(told)}." if told else ""


def targets_without_modules(plan: RunPlan, modules: Collection[str]) -> str:
    """A sentence on adapter targets that no module has, given the full names of all modules;
    otherwise empty."""
    lacking = [
        target
        for target in plan.lora_targets
        if target != ALL_LINEAR and not any(f".{name}".endswith(f".{target}") for name in modules)
    ]
    return f"No module is named {', '.join(lacking)}; no adapter is there." if lacking else ""
