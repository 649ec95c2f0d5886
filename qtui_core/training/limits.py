"""How a plan is run on this machine: plans that cannot be run or traced, each with the reason; on
one GPU, at which learning rate; and which options change nothing then, so that nobody considers
them measured.

The estimate covers more than any one machine has installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.memory.plan.optimizers import OPTIMIZERS
from qtui_core.memory.plan.run_plan import RunPlan

#: What a value may require and a machine may lack: a GPU, or a package.
GPU: Final = "cuda"
LIGER: Final = "liger_kernel"

_LIGER: Final = "{} takes kernels of Liger, which {}. Use --kernels torch and --loss tiled."
_ON_A_GPU: Final = "run on a GPU only"
_TO_INSTALL: Final = "are not installed (`pip install liger-kernel`)"
#: Losses that a trace can run.
_TRACED_LOSSES: Final = ("stock", "stock-4.48")
#: The most generated tokens that a trace follows: each is a forward pass of its own.
_MOST_TRACED_TOKENS: Final = 16


@dataclass(frozen=True)
class Limit:
    """A value that is refused.

    Attributes:
        option: the field of `RunPlan` that has the value.
        where: whether a resolved plan has the value.
        says: the refusal of a run; for a trace, what it does not show. {plan} is the plan.
        takes: GPU or LIGER if the value is refused only because that is missing.
    """

    option: str
    where: Callable[[RunPlan], bool]
    says: str
    takes: str = ""


#: What cannot be run; the first entry that applies to a plan is reported.
RUN_LIMITS: Final = (
    Limit("sequence", lambda plan: plan.trains and plan.sequence < 2,
        "Learning the next token takes sequences of 2 tokens or more, and this plan has 1; use "
        "--seq 2 or more."),
    Limit("kernels", lambda plan: plan.kernels == "fused",
        "--kernels fused are Unsloth's, which replace whole models and are not run here; "
        "`qtui memory` estimates them. Use --kernels torch or liger."),
    Limit("loss", lambda plan: plan.loss.startswith("in-place"),
        "--loss {plan.loss} is a kernel of Unsloth, which is not run here; `qtui memory` estimates "
        "it. Use --loss tiled, which keeps no logits either."),
    *(
        Limit(
            option, lambda plan, option=option, value=value: getattr(plan, option) == value,  # type: ignore[misc]
            _LIGER.format(f"--{option} {value}", why), takes,
        )
        for option, value in (("loss", "fused"), ("kernels", "liger"))
        for why, takes in ((_ON_A_GPU, GPU), (_TO_INSTALL, LIGER))
    ),
    Limit("attention", lambda plan: plan.attention in ("flash", "efficient"),
        "--attention {plan.attention} is a kernel of CUDA, and this run is on the CPU; use "
        "--attention sdpa, which uses the CPU's own.", GPU),
    Limit(
        # The head is never quantized, so it has the dtype of the plan.
        "kbit_prep",
        lambda plan: plan.kbit_prep == "norms" and plan.dtype != "fp32" and not plan.autocast,
        "--kbit-prep norms makes hidden states float32, and layers in {plan.dtype} that are not "
        "quantized do not accept them; add --autocast, or use --kbit-prep all."),
    Limit("kv_dtype", lambda plan: plan.recasts_cache,
        "A run keeps keys and values as they are computed; leave out --kv-dtype."),
    Limit("image_tokens", lambda plan: plan.image_tokens > 0,
          "A run reads text alone; leave out --image-tokens, which `qtui memory` estimates."),
    Limit("optimizer", lambda plan: plan.optimizer == "adamw4bit",
        "--optimizer adamw4bit compiles its step, and a run on a CPU cannot count the tensors of "
        "compiled operations; use --optimizer adamw8bit.", GPU),
    Limit("optimizer", lambda plan: plan.optimizer.startswith("paged-"),
        "--optimizer {plan.optimizer} pages states between a GPU and the host, and this run is on "
        "the CPU; use the one without paged-.", GPU),
)  # fmt: skip

#: What a trace does not show; all entries that apply to a plan are reported.
TRACE_LIMITS: Final = (
    Limit("loss", lambda plan: plan.loss not in _TRACED_LOSSES,
        f"--loss {{plan.loss}} (a trace runs {' and '.join(_TRACED_LOSSES)})"),
    Limit("gpus", lambda plan: plan.gpus > 1, "more than one GPU"),
    Limit("kernels", lambda plan: plan.kernels != "torch", "fused kernels"),
    Limit("image_tokens", lambda plan: plan.image_tokens > 0, "images"),
    Limit("kv_dtype", lambda plan: plan.recasts_cache, "a cache of another type"),
    Limit("repeat_kv", lambda plan: plan.repeat_kv, "keys and values repeated by hand"),
    Limit("generate", lambda plan: plan.generate > _MOST_TRACED_TOKENS,
          f"more than {_MOST_TRACED_TOKENS} generated tokens"),
    Limit("optimizer", lambda plan: plan.optimizer.startswith("paged"), "paged optimizer states"),
    Limit("optimizer", lambda plan: plan.optimizer == "adamw4bit",
          "4-bit optimizer states, whose step is compiled"),
)  # fmt: skip


def check_runnable(plan: RunPlan, device_type: str) -> None:
    """Raises UsageError if this machine cannot run a resolved plan, and says what to do instead."""
    for limit in RUN_LIMITS:
        there = find_spec(LIGER) if limit.takes == LIGER else device_type == limit.takes
        if limit.where(plan) and not there:
            raise UsageError(limit.says.format(plan=plan))


def check_traceable(plan: RunPlan) -> None:
    """Raises UsageError if a trace cannot follow a plan, and says what to do instead."""
    if hidden := [limit.says.format(plan=plan) for limit in TRACE_LIMITS if limit.where(plan)]:
        raise UsageError(
            f"A trace runs the installed libraries on one fake GPU, which does not show "
            f"{', '.join(hidden)}; leave that out of the plan, or leave out --trace."
        )


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


def unused_options(given: RunPlan, runs: RunPlan, device_type: str) -> str:
    """A sentence on options that were given, not left to their defaults, and change nothing;
    otherwise empty.

    Args:
        given: the plan as it was given, with what was left open.
        runs: the resolved plan, for the torch that is installed.
        device_type: "cpu" or "cuda".
    """
    reasons: dict[str, list[str]] = {}
    for option in given.without_effect(runs):
        reasons.setdefault(option.idle, []).append(option.flag)
    if device_type == "cpu" and given.segments != RunPlan().segments:
        reasons["a CPU has no allocator with segments"] = ["--segments"]
    if given.torch not in (RunPlan().torch, runs.torch):
        reasons[f"torch {runs.torch} is installed and runs"] = ["--torch"]
    idle = [f"{', '.join(flags)} ({why})" for why, flags in reasons.items()]
    return f"Without effect in this run: {'; '.join(idle)}." if idle else ""
