"""The options that make a plan, shared by every command that estimates or runs one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click
from click.core import ParameterSource

from qtui_core.memory.plan.choices import (
    ATTENTION_KERNELS,
    KBIT_PREPARATIONS,
    KERNELS,
    LOOPS,
    METHODS,
    OPTIMIZERS,
    QUANT_STORAGES,
    SEGMENTS,
    STORAGES,
    parse_targets,
)
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.plan.text import OPTIONS

Command = Callable[..., Any]

_DEFAULT = RunPlan()


def _choice(option: str, values: tuple[str, ...], help: str) -> Command:
    default = getattr(_DEFAULT, OPTIONS[option])
    return click.option(
        option,
        OPTIONS[option],
        type=click.Choice(values),
        default=default,
        show_default=default is not None,
        help=help,
    )


def _number(option: str, help: str, kind: type = int) -> Command:
    return click.option(
        option,
        OPTIONS[option],
        type=kind,
        default=getattr(_DEFAULT, OPTIONS[option]),
        show_default=True,
        metavar="N" if kind is int else "SHARE",
        help=help,
    )


def _text(option: str, metavar: str, help: str) -> Command:
    default = getattr(_DEFAULT, OPTIONS[option])
    return click.option(
        option,
        OPTIONS[option],
        default=default,
        show_default=default is not None,
        metavar=metavar,
        help=help,
    )


def _switch(option: str, help: str) -> Command:
    return click.option(
        f"{option}/{option.replace('--', '--no-', 1)}",
        OPTIONS[option],
        default=getattr(_DEFAULT, OPTIONS[option]),
        help=help,
    )


_ALL = (
    _choice("--method", METHODS, "What is trained, or that nothing is."),
    _number("--batch", "Sequences in a micro batch."),
    _number("--seq", "Tokens in a sequence; where none are given, no more than a model has learned "
            "positions for."),
    _text("--dtype", "TYPE", "Of parameters and activations: fp32, bf16, fp16, or torch's names. "
          "[default: that of the checkpoint]"),
    _switch("--autocast", "Run the forward pass under torch.autocast (the Trainer's bf16=True). "
            "[default: on for qlora]"),
    _text("--autocast-dtype", "TYPE", "The 16 bits of autocast."),
    _choice("--quant", (*STORAGES, "none"), "How frozen weights are stored; a quantized "
            "checkpoint is taken as it is, or unpacked as it is loaded (none). "
            "[default: as the checkpoint has them; of a plain one nf4-dq for qlora, else none]"),
    _choice("--quant-storage", QUANT_STORAGES, "Type that 4-bit weights are packed into "
            "(bnb_4bit_quant_storage): --zero 3 shards those in a floating one."),
    _choice("--kbit-prep", KBIT_PREPARATIONS, "Which 16-bit parameters that are not quantized "
            "become float32: all is peft's prepare_model_for_kbit_training. "
            "[default: all for qlora, else none]"),
    _number("--lora-rank", "Rank of the adapters."),
    click.option("--lora-targets", "lora_targets", default=",".join(_DEFAULT.lora_targets),
                 show_default=True, metavar="NAME,NAME", help="Modules that get adapters."),
    _number("--lora-dropout", "Dropout before each adapter.", float),
    _text("--adapter-dtype", "TYPE", "Of the adapters.  [default: fp32, as peft makes them]"),
    _choice("--optimizer", OPTIMIZERS, "adamw is torch's on lists of tensors (foreach)."),
    _switch("--checkpointing", "Recompute each layer in the backward pass. "
            "[default: on for qlora]"),
    _switch("--reentrant", "Checkpoints are of the older kind, the default of transformers 4."),
    _choice("--kernels", KERNELS, "fused takes norms, rotations and 4-bit adapters from Unsloth, "
            "liger norms, rotations and SwiGLU from Liger."),
    _choice("--attention", ATTENTION_KERNELS, "sdpa lets torch choose its kernel."),
    _switch("--repeat-kv", "Grouped keys and values are copied to all heads, as in transformers "
            "before 4.48."),
    _switch("--padding-mask", "Sequences of a batch are padded to one length."),
    _text("--loss", "LOSS", "stock, stock-4.48 (upcasts logits), tiled (TRL from 1.15 on), "
          "chunked:256 (TRL to 1.12), fused (Liger), in-place or in-place-4.48 (its gradient is "
          "written over the logits)."),
    _number("--accumulation", "Micro batches in a step."),
    _choice("--loop", LOOPS, "manual holds the outputs through the backward pass, script longer."),
    _choice("--segments", SEGMENTS, "Of the allocator of CUDA memory."),
    _number("--gpus", "GPUs; figures are of one of them."),
    _number("--zero", "What ZeRO or FSDP shards: 1 optimizer states, 2 gradients too, 3 weights "
            "too."),
    _number("--tensor-parallel", "GPUs that share each layer."),
    _number("--pipeline-parallel", "GPUs that share the row of layers."),
    _number("--generate", "Tokens that an inference goes on for after its prompt."),
    _text("--torch", "VERSION", "Whose workspaces are meant."),
)  # fmt: skip


def given_options(ctx: click.Context) -> list[str]:
    """The options of a plan that were typed."""
    return [
        option
        for option, field in OPTIONS.items()
        if ctx.get_parameter_source(field) is not ParameterSource.DEFAULT
    ]


def plan_options(command: Command) -> Command:
    """Adds every option of a plan to a click command, which gets the plan as `plan`."""

    @wraps(command)
    def with_plan(*args: Any, **values: Any) -> Any:
        plan = {field: values.pop(field) for field in OPTIONS.values()}
        targets = parse_targets(plan.pop("lora_targets"))
        return command(*args, plan=RunPlan(lora_targets=targets, **plan), **values)

    wrapped: Command = with_plan
    for option in reversed(_ALL):
        wrapped = option(wrapped)
    return wrapped
