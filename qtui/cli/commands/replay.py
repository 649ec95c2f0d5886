"""`qtui replay FILE`: shows a recording in the app or as a report."""

from __future__ import annotations

import click

from qtui.cli.commands.app import terminal_problem
from qtui.cli.options import ReportOptions, report_options


@click.command("replay", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file")
@report_options
@click.pass_context
def command(
    ctx: click.Context,
    file: str,
    report: ReportOptions,
) -> None:
    """Show a recording of `qtui train --record`, `qtui lab --record`, `qtui eval --record` or the
    app. A training run plays in the app; without a terminal, or with --format, its report is
    printed. Of an experiment or an evaluation the report is printed.
    """
    from functools import reduce

    from qtui.report.lab.document import lab_replay
    from qtui.report.train.document import train_document
    from qtui_core.evaluation.results import is_evaluation_recording, read_evaluation_recording
    from qtui_core.lab.recording import is_lab_recording, read_lab_recording
    from qtui_core.live.state import RunState, after, read_recording

    target = report.target(file)
    if is_lab_recording(file):
        experiment = lab_replay(read_lab_recording(file), f"qtui replay {file}")
        report.write(experiment, target)
        return
    if is_evaluation_recording(file):
        from qtui.report.evaluation.document import evaluation_replay

        found = evaluation_replay(read_evaluation_recording(file), f"qtui replay {file}")
        report.write(found, target)
        return
    recording = read_recording(file)
    if report.format is None and report.output is None and not terminal_problem():
        from qtui.tui.start import run

        ctx.exit(
            run(
                recording.header.model,
                color=report.color,
                ascii=report.ascii,
                debug=report.debug,
                recording=file,
            )
        )
    state = reduce(after, recording, RunState())
    document = train_document(state, f"qtui replay {file}", recording.complaint)
    report.write(document, target)
