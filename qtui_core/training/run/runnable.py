"""How a plan is run on this machine: on one GPU, at which learning rate, with which kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from qtui_core.memory.plan.optimizers import OPTIMIZERS
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
