"""A plan as the options of the command line that make it, so that what a report shows can be typed
again, and a change is named as what to type."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.plan.run_plan import RunPlan

#: Option -> field of RunPlan, in the groups in which they are shown.
GROUPS: Final = {
    "run": {
        "--method": "method",
        "--batch": "batch",
        "--seq": "sequence",
        "--accumulation": "accumulation",
        "--generate": "generate",
        "--loop": "loop",
    },
    "numbers": {
        "--dtype": "dtype",
        "--autocast": "autocast",
        "--autocast-dtype": "autocast_dtype",
        "--quant": "quant",
        "--quant-storage": "quant_storage",
        "--kbit-prep": "kbit_prep",
    },
    "adapters": {
        "--lora-rank": "lora_rank",
        "--lora-targets": "lora_targets",
        "--lora-dropout": "lora_dropout",
        "--adapter-dtype": "adapter_dtype",
    },
    "step": {
        "--optimizer": "optimizer",
        "--checkpointing": "checkpointing",
        "--reentrant": "reentrant",
        "--kernels": "kernels",
        "--attention": "attention",
        "--repeat-kv": "repeat_kv",
        "--padding-mask": "padding_mask",
        "--loss": "loss",
    },
    "machine": {
        "--gpus": "gpus",
        "--zero": "zero",
        "--tensor-parallel": "tensor_parallel",
        "--pipeline-parallel": "pipeline_parallel",
        "--segments": "segments",
        "--torch": "torch",
    },
}
#: Option -> field, without the groups.
OPTIONS: Final = {option: field for group in GROUPS.values() for option, field in group.items()}


def written(option: str, plan: RunPlan) -> str:
    """An option with the value that a plan has there: `--batch 4`, `--no-autocast`."""
    value = getattr(plan, OPTIONS[option])
    if isinstance(value, bool):
        return option if value else option.replace("--", "--no-", 1)
    if value is None:
        value = "none"
    return f"{option} {','.join(value) if isinstance(value, tuple) else value}"


def grouped(plan: RunPlan) -> list[tuple[str, str]]:
    """(group, its options) of everything in a plan. Adapters are left out where there are none."""
    return [
        (group, " ".join(written(option, plan) for option in options))
        for group, options in GROUPS.items()
        if group != "adapters" or plan.adapts
    ]


def change(before: RunPlan, after: RunPlan) -> str:
    """What to type to come from one plan to another."""
    return " ".join(
        written(option, after)
        for option, field in OPTIONS.items()
        if getattr(before, field) != getattr(after, field)
    )
