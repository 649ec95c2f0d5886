"""`qtui memory MODEL`: estimates the memory of a run before it runs."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import click

from qtui.cli.options import (
    GateOptions,
    ReportOptions,
    gate_options,
    report_options,
    write_gated,
)
from qtui.cli.plan_options import plan_options
from qtui_core.errors import UsageError
from qtui_core.memory.plan.run_plan import RunPlan

if TYPE_CHECKING:
    from qtui_core.memory.advice.fit import Knob


@click.command("memory", context_settings={"help_option_names": ["-h", "--help"]})
@report_options
@click.argument("model")
@gate_options("'peak>22GiB'")
@plan_options
@click.option("--gpu", metavar="NAME", help="The GPU to fit, such as 'RTX 4090' or 'H100'.")
@click.option("--vram", metavar="SIZE", help="The memory to fit instead, such as 24GiB.")
@click.option(
    "--max",
    "knob",
    type=click.Choice(("batch", "seq")),
    help="The largest batch or sequence that fits --gpu or --vram.",
)
@click.option(
    "--explain", is_flag=True, help="Show every term: formula, numbers, basis, and source."
)
@click.option(
    "--trace/--no-trace",
    default=None,
    help="Estimate from a trace, or from none: the classes of the installed transformers run on "
    "tensors without values, in ten seconds to a minute. Without either, families that are not "
    "built in are traced.",
)
@click.pass_context
def command(
    ctx: click.Context,
    model: str,
    plan: RunPlan,
    gpu: str | None,
    vram: str | None,
    knob: Knob | None,
    explain: bool,
    trace: bool | None,
    report: ReportOptions,
    gates: GateOptions,
) -> None:
    """The memory of a run of MODEL on a GPU, from its config.json alone: the peak of a training
    step by component and phase, the GPUs it fits, and what each change would save.

    Every option has a default; the report prints all options.

    Exit code 1 means that the run does not fit the named GPU, or that a gate failed.
    """
    # Nothing here makes reference cycles, so the collector would visit 100,000 events in vain.
    gc.disable()
    if gpu is not None and vram is not None:
        raise UsageError("--gpu names a GPU with its memory and --vram a memory: choose one.")
    if knob is not None and gpu is None and vram is None:
        raise UsageError(f"--max {knob} needs a GPU or its memory: give --gpu or --vram.")
    target = report.target(model, gates.baseline)
    gated = gates.of("memory")
    if trace and knob is not None:
        raise UsageError("--max needs many estimates and --trace is slow: choose one.")
    from qtui.cli.memory_report import chosen_device, report_on
    from qtui.report.memory.document import memory_document
    from qtui_core.models import open_model

    device = chosen_device(gpu, vram)
    with open_model(model) as source:
        found = report_on(source, plan, device, knob, trace=trace)
    document = memory_document(found, explain=explain, picture=report.face == "html")
    write_gated(report, document, target, gated)
    gc.freeze()  # At exit, too, the collector need not visit the events.
    if found.asked is not None and found.fits[0].verdict == "no":
        ctx.exit(1)  # it does not fit the GPU that was named
