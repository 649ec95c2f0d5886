"""`qtui replay FILE`: a recording of a run, in the app or as a summary."""

from __future__ import annotations

import click

from qtui.cli.commands.app import terminal_problem
from qtui.cli.options import appearance, report_format, report_target


@click.command("replay", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file")
@report_format
@appearance
@click.pass_context
def command(
    ctx: click.Context,
    file: str,
    format: str | None,
    output: str | None,
    force: bool,
    color: str,
    ascii: bool,
    debug: bool,
) -> None:
    """A recording that `qtui train --record`, `qtui lab --record` or the app made. A run is shown
    as it happened, in the app, where there is a terminal; as its report where there is none, or a
    format is asked for. An experiment is shown as its report.
    """
    from functools import reduce

    from qtui.report.faces.render import choose_format, write_report
    from qtui.report.lab.document import lab_replay
    from qtui.report.train.document import train_document
    from qtui_core.lab.recording import is_lab_recording, read_lab_recording
    from qtui_core.live.recording import read_recording
    from qtui_core.live.state import RunState, after

    target = report_target(output, force, file)
    if is_lab_recording(file):
        experiment = lab_replay(read_lab_recording(file), f"qtui replay {file}")
        chosen = choose_format(format, output)
        write_report(experiment, chosen, target, color=color, ascii=ascii)
        return
    recording = read_recording(file)
    if format is None and output is None and not terminal_problem():
        from qtui.tui.start import run

        ctx.exit(
            run(
                recording.header.model,
                color=color,
                ascii=ascii,
                debug=debug,
                recording=file,
            )
        )
    state = reduce(after, recording, RunState())
    document = train_document(state, f"qtui replay {file}", recording.complaint)
    chosen = choose_format(format, output)
    write_report(document, chosen, target, color=color, ascii=ascii)
