"""What of a plan runs here. The estimate knows more than any one machine has installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Final

from qtui_core.errors import UsageError
from qtui_core.memory.plan.run_plan import RunPlan

#: Learning rates by what is trained. Adapters take about ten times what the weights themselves do
#: (Hu et al. 2021, appendix D: 2e-4 for GPT-2, where 1e-5 to 5e-5 are usual for the weights); both
#: are at the upper end here, so that runs of few steps show that something is learned.
_ADAPTERS: Final = 1e-3
_WEIGHTS: Final = 1e-4
_SGD: Final = 1e-2


def rate_of(plan: RunPlan) -> float:
    """The learning rate of a run, constant, without warm-up."""
    if plan.optimizer == "sgd":
        return _SGD
    return _ADAPTERS if plan.adapts else _WEIGHTS


def one_gpu(plan: RunPlan) -> tuple[RunPlan, str]:
    """The plan as one GPU runs it by itself, and a sentence on what that leaves out; "" where the
    plan is for one."""
    if plan.gpus == 1:
        return plan, ""
    alone = replace(plan, gpus=1, zero=0, tensor_parallel=1, pipeline_parallel=1)
    return alone, (
        f"The plan is for {plan.gpus} GPUs; one is run, with all of the model on it: what it "
        f"measures, and the estimate beside it, are of --gpus 1."
    )


def check_runnable(plan: RunPlan, device_type: str) -> None:
    """Raises UsageError for a plan, with nothing left open, that this machine cannot run, naming
    what and what to do instead."""
    cuda = device_type == "cuda"
    if plan.trains and plan.sequence < 2:
        raise UsageError(
            "To learn which token is next a sequence needs 2 or more, and this plan has 1; "
            "use --seq 2 or more."
        )
    if plan.kernels == "fused":
        raise UsageError(
            "--kernels fused are Unsloth's, which replace whole models and are not run here; "
            "`qtui memory` estimates them. Use --kernels torch or liger."
        )
    if plan.loss.startswith("in-place"):
        raise UsageError(
            f"--loss {plan.loss} is a kernel of Unsloth, which is not run here; `qtui memory` "
            f"estimates it. Use --loss tiled, which keeps no logits either."
        )
    if (plan.kernels == "liger" or plan.loss == "fused") and not (cuda and _has("liger_kernel")):
        what = "--loss fused" if plan.loss == "fused" else "--kernels liger"
        lack = "run on a GPU only" if not cuda else "are not installed (`pip install liger-kernel`)"
        raise UsageError(
            f"{what} takes kernels of Liger, which {lack}. Use --kernels torch and --loss tiled."
        )
    if plan.attention in ("flash", "efficient") and not cuda:
        raise UsageError(
            f"--attention {plan.attention} is a kernel of CUDA, and this run is on the CPU; use "
            f"--attention sdpa, which takes the CPU's own."
        )
    plain = plan.dtype != "fp32" and not plan.autocast  # the head is never quantized
    if plan.kbit_prep == "norms" and plain:
        raise UsageError(
            f"--kbit-prep norms makes hidden states float32, which layers of {plan.dtype} that are "
            f"not quantized do not take; add --autocast, or use --kbit-prep all."
        )
    if plan.optimizer == "adamw4bit" and not cuda:
        raise UsageError(
            "--optimizer adamw4bit compiles its step, and on a CPU, where tensors are counted as "
            "operations return them, compiled ones are not seen; use --optimizer adamw8bit."
        )
    if plan.optimizer.startswith("paged") and not cuda:
        raise UsageError(
            f"--optimizer {plan.optimizer} pages states between a GPU and the host, and this run "
            f"is on the CPU; use --optimizer {plan.optimizer.removeprefix('paged-')}."
        )


@contextmanager
def kernels_of(plan: RunPlan) -> Iterator[None]:
    """Attention runs on the kernel of the plan inside; with `repeat_kv` on keys and values that
    were copied to all heads."""
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
    """Puts Liger's kernels into a model, as the Trainer does (use_liger_kernel); for the loss
    alone, that one."""
    if plan.kernels != "liger" and plan.loss != "fused":
        return
    from liger_kernel.transformers import _apply_liger_kernel_to_instance  # type: ignore

    if plan.kernels == "liger":
        _apply_liger_kernel_to_instance(model=model)
    else:
        _apply_liger_kernel_to_instance(
            model=model, rope=False, rms_norm=False, swiglu=False, fused_linear_cross_entropy=True
        )


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
