"""`qtui lab [NAME]`: runs an experiment in training numerics, or lists the experiments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from qtui.cli.options import ReportOptions, as_stdout, report_options
from qtui_core.lab.catalog import EXPERIMENTS, Experiment, cost_text
from qtui_core.lab.settings import Setting

_HELP = {"help_option_names": ["-h", "--help"]}


class _SettingType(click.ParamType):
    """The click type of a setting: it reads text in the same way as the panel's form."""

    def __init__(self, row: Setting) -> None:
        self.name = "text"
        self._row = row

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._row.read(value) if isinstance(value, str) else value


class _Experiments(click.Group):
    """A group with a command for each row of the catalogue."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [row.name for row in EXPERIMENTS]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return next((_command_of(row) for row in EXPERIMENTS if row.name == name), None)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from qtui_core.lab.catalog import experiment_named

        if args:
            experiment_named(args[0])
        return super().resolve_command(ctx, args)


def _command_of(row: Experiment) -> click.Command:
    def run(**values: Any) -> None:
        _run(row, click.get_current_context(), values)

    seconds = f"{cost_text(row.seconds)} on two cores, by how busy they are."
    shared = click.command(
        row.name,
        help=f"{row.question}\n\n{seconds}",
        short_help=row.question,
        context_settings=_HELP,
    )
    function: Any = report_options(run)
    for option in (
        click.option(
            "--resume",
            metavar="FILE",
            help="Continue this recording; its finished parts are not run again.",
        ),
        click.option(
            "--record",
            metavar="FILE",
            callback=as_stdout,
            help="Record the experiment in this file while it runs, or - for stdout.",
        ),
    ):
        function = option(function)
    for setting in reversed(row.settings):
        function = click.option(
            setting.flag,
            setting.name,
            type=_SettingType(setting),
            default=None if setting.default is None else setting.written(setting.default),
            show_default=setting.default is not None,
            metavar="|".join(setting.allowed)
            if setting.kind == "choice"
            else "FILE"
            if setting.name == "text"
            else {"several": "NAME,...", "wholes": "N,...", "whole": "N", "text": "NAME"}.get(
                setting.kind, "X"
            ),
            help=setting.help
            + (f" Of: {', '.join(setting.allowed)}." if setting.kind == "several" else ""),
        )(function)
    return shared(click.argument("model", default="demo")(function))


def _run(row: Experiment, ctx: click.Context, values: dict[str, Any]) -> None:
    from qtui.cli.lab_run import run_to_end
    from qtui.engine.lab.request import LabRequest
    from qtui.report.lab.document import lab_document

    model, text = values.get("model", "demo"), values.get("text")
    resume, report = values["resume"], values["report"]
    target = report.target(model, text, resume)
    kept = report.record_target(values["record"], target, model, text, resume)
    settings = {setting.name: values[setting.name] for setting in row.settings}
    request = LabRequest(row.name, row.settle(settings), model)
    if resume is not None:
        given = {
            name: settings[name]
            for name in settings
            if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
        }
        named = ctx.get_parameter_source("model") not in (None, ParameterSource.DEFAULT)
        typed = model if named else None
        request = _resumed(row, resume, given, typed)
    outcome = run_to_end(request, kept, debug=report.debug)
    document = lab_document(outcome.result, ctx.command_path)
    report.write(document, target)
    if outcome.interrupted:
        raise KeyboardInterrupt
    if outcome.exit_code:
        ctx.exit(outcome.exit_code)


def _resumed(row: Experiment, file: str, given: Mapping[str, Any], model: str | None) -> Any:
    """The run to continue from a recording. Raises UsageError if the recording is of another
    experiment, model or setting."""
    from qtui.engine.lab.request import LabRequest
    from qtui_core.errors import UsageError
    from qtui_core.lab.recording import read_lab_recording

    recording = read_lab_recording(file)
    begun = recording.begun
    if begun.experiment != row.name:
        raise UsageError(
            f"{file!r} is a recording of {begun.experiment}: go on with `qtui lab "
            f"{begun.experiment} --resume {file}`."
        )
    settings = row.settle(begun.settings)
    other = [name for name, value in given.items() if settings.get(name) != value]
    if other:
        flag = f"--{other[0].replace('_', '-')}"
        raise UsageError(
            f"{file!r} was made with another {flag}: leave it out to go on, or run without "
            "--resume."
        )
    if model is not None and model != begun.model:
        raise UsageError(f"{file!r} is of the model {begun.model!r}, not {model!r}.")
    return LabRequest(row.name, settings, begun.model, recording.jobs)


@click.group(
    "lab",
    cls=_Experiments,
    invoke_without_command=True,
    context_settings=_HELP,
    subcommand_metavar="[NAME] [MODEL] ...",
)
@report_options
@click.pass_context
def command(
    ctx: click.Context,
    report: ReportOptions,
) -> None:
    """What low precision does to learning, shown by training. NAME runs an experiment; without it,
    lists the experiments with the question and cost of each.

    MODEL is the demo model if none is named. Everything runs on the CPU, on real weights and text,
    beside a twin in float32 on the same batches.
    """
    if ctx.invoked_subcommand is not None:
        return
    from qtui.report.lab.document import catalog_document

    target = report.target()
    report.write(catalog_document(), target)
