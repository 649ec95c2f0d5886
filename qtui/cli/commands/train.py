"""`qtui train MODEL`: a real run, held against its estimate."""

from __future__ import annotations

import click

from qtui.cli.options import appearance, as_stdout, report_format, report_target
from qtui.cli.plan_options import given_options, plan_options
from qtui_core.memory.plan.run_plan import RunPlan


@click.command("train", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="How many steps to run.",
)
@click.option("--data", metavar="FILE", help="A text file to learn from.  [default: a text inside]")
@click.option(
    "--record",
    metavar="FILE",
    callback=as_stdout,
    help="Write everything that is measured to this file, or - for stdout, as it happens.",
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="DEVICE",
    help="auto, cpu, cuda or cuda:N; auto takes the first GPU, else the CPU.",
)
@click.option(
    "--prompt", metavar="TEXT", help="Compare the next tokens of this text, adapters on and off."
)
@click.option(
    "--ranges",
    is_flag=True,
    help="Tell where the numbers of the last step lie, against what formats hold.",
)
@plan_options
@report_format
@appearance
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
    plan: RunPlan,
    format: str | None,
    output: str | None,
    force: bool,
    color: str,
    ascii: bool,
    debug: bool,
) -> None:
    """Train MODEL for some steps, and hold what it takes against the estimate: memory by phase and
    component, what the difference is made of, time, and loss.

    Without a GPU the same step runs on the CPU, and bytes of live tensors are counted. Weights are
    never written: the run is a measurement.

    Ctrl-C stops within a second; what was measured until then is told all the same. Exit code 1
    means that the run failed, 4 that there is no GPU where one was asked for.
    """
    from qtui.cli.training_run import run_to_end
    from qtui.report.faces.render import choose_format, write_report
    from qtui.report.train.document import train_document
    from qtui_core.errors import UsageError
    from qtui_core.files import STDOUT, target_of
    from qtui_core.training.run.request import RunRequest

    target = report_target(output, force, model, data)
    kept = None if record is None else target_of(record, force=force, inputs=(model, data))
    if kept is not None and record == STDOUT and target is None:
        raise UsageError("--record - and the report would both go to stdout: give -o FILE too.")
    if kept is not None and target is not None and kept.path == target.path:
        raise UsageError("--record and -o name one file: give two.")
    chosen = choose_format(format, output)
    request = RunRequest(
        model,
        plan,
        steps,
        data,
        device,
        text=prompt or None,
        usual="--seq" not in given_options(ctx),
        ranges=ranges,
    )
    outcome = run_to_end(request, kept, debug=debug)
    document = train_document(outcome.state, f"qtui train {model}")
    write_report(document, chosen, target, color=color, ascii=ascii)
    if outcome.interrupted:
        raise KeyboardInterrupt
    if outcome.exit_code:
        ctx.exit(outcome.exit_code)
