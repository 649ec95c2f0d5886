"""`qtui train MODEL`: runs training steps, and compares them with their estimate."""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from qtui.cli.options import ReportOptions, as_stdout, report_options
from qtui.cli.plan_options import given_options, plan_options
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.training.run.request import USUAL_STEPS


@click.command("train", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=USUAL_STEPS,
    show_default=True,
    metavar="N",
    help="How many steps to run.",
)
@click.option("--data", metavar="FILE", help="A text file to learn from.  [default: built-in text]")
@click.option(
    "--record",
    metavar="FILE",
    callback=as_stdout,
    help="Record the run in this file while it runs, or - for stdout.",
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="DEVICE",
    help="auto, cpu, cuda or cuda:N; auto takes the first GPU, else the CPU.",
)
@click.option(
    "--prompt", metavar="TEXT", help="Compare the next tokens after this text, adapters on and off."
)
@click.option(
    "--ranges",
    is_flag=True,
    help="Report the range of the last step's numbers beside the ranges of formats.",
)
@click.option(
    "--yes", is_flag=True, help="Run also if that takes memory which other processes need."
)
@plan_options
@report_options
@click.pass_context
def command(
    ctx: click.Context,
    model: str,
    steps: int,
    data: str | None,
    record: str | None,
    device: str,
    prompt: str | None,
    ranges: bool,
    yes: bool,
    plan: RunPlan,
    report: ReportOptions,
) -> None:
    """Train MODEL for some steps, and compare the memory with the estimate: by phase and component,
    with the parts of the difference, time, and loss.

    Without a GPU the same step runs on the CPU, and the bytes of live tensors are counted. The run
    is a measurement: trained weights are not saved.

    Ctrl-C stops within a second, and the report has everything measured until then. Exit code 1
    means that the run failed, or was not begun as it would take memory which other processes need
    (in a terminal you are asked; --yes runs it); 4 that a GPU was requested and there is none.
    """
    from qtui.cli.training_run import run_to_end
    from qtui.report.train.document import train_document
    from qtui_core.training.run.request import NotBegun, RunRequest

    target = report.target(model, data)
    kept = report.record_target(record, target, model, data)
    request = RunRequest(
        model,
        plan,
        steps,
        data,
        device,
        text=prompt or None,
        usual="--seq" not in given_options(ctx),
        ranges=ranges,
        taking=yes,
    )
    try:
        outcome = run_to_end(request, kept, debug=report.debug)
    except NotBegun as error:
        if not _agreed(str(error)):
            raise
        outcome = run_to_end(replace(request, taking=True), kept, debug=report.debug)
    document = train_document(outcome.state, f"qtui train {model}")
    report.write(document, target)
    if outcome.interrupted:
        raise KeyboardInterrupt
    if outcome.exit_code:
        ctx.exit(outcome.exit_code)


def _agreed(refusal: str) -> bool:
    """Whether the user, asked in a terminal, wants a run that was refused for the memory of others.
    A script is not asked."""
    from qtui.ending import say

    if not _in_terminal():
        return False
    say(refusal)
    return click.confirm("Run it all the same?", err=True)


def _in_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
