"""How a plan is run on this machine: on one GPU, at which learning rate, with which kernels; and
which of its options change nothing then, so that nobody considers them measured."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from qtui_core.memory.plan.optimizers import OPTIMIZERS
from qtui_core.memory.plan.options import ALL_LINEAR
from qtui_core.memory.plan.run_plan import RunPlan


def rate_of(plan: RunPlan) -> float:
    """The learning rate of a run, which is constant and has no warm-up."""
    adapters, weights = OPTIMIZERS[plan.optimizer].rates
    return adapters if plan.adapts else weights


def one_gpu(plan: RunPlan) -> tuple[RunPlan, str]:
    """The plan as a single GPU runs it, and a sentence on what that leaves out; empty if the plan
    is for one GPU."""
    if plan.gpus == 1:
        return plan, ""
    alone = replace(plan, gpus=1, zero=0, tensor_parallel=1, pipeline_parallel=1)
    return alone, (
        f"The plan is for {plan.gpus} GPUs; one is run, with all of the model on it: what it "
        f"measures, and the estimate beside it, are of --gpus 1."
    )


@contextmanager
def kernels_of(plan: RunPlan) -> Iterator[None]:
    """A context in which attention runs on the kernel of the plan; with `repeat_kv`, keys and
    values are first copied to all heads."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from transformers.integrations import sdpa_attention

    backends: dict[str, Any] = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
    }
    grouped = sdpa_attention.use_gqa_in_sdpa
    if plan.repeat_kv:
        sdpa_attention.use_gqa_in_sdpa = lambda *_, **__: False
    try:
        with (
            sdpa_kernel(backends[kernel])
            if (kernel := plan.attention) in backends
            else nullcontext()
        ):
            yield
    finally:
        sdpa_attention.use_gqa_in_sdpa = grouped


def use_liger(model: Any, plan: RunPlan) -> None:
    """Puts Liger's kernels into a model, as the Trainer does (use_liger_kernel), or only Liger's
    loss."""
    if plan.kernels != "liger" and plan.loss != "fused":
        return
    from liger_kernel.transformers import _apply_liger_kernel_to_instance  # type: ignore

    if plan.kernels == "liger":
        _apply_liger_kernel_to_instance(model=model)
    else:
        _apply_liger_kernel_to_instance(
            model=model, rope=False, rms_norm=False, swiglu=False, fused_linear_cross_entropy=True
        )


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
