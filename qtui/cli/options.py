"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from qtui_core.dataclass import dataclass
from qtui_core.errors import QtuiError, UsageError
from qtui_core.threads import VARIABLE, limit_threads

if TYPE_CHECKING:
    from qtui.report.document import Document
    from qtui_core.files import Target
    from qtui_core.gates import Gates

Command = Callable[..., Any]

_COLORS = ("auto", "truecolor", "256", "16", "none")


def appearance(command: Command) -> Command:
    """`--threads`, `--color`, `--ascii` and `--debug`, which every command takes."""
    for option in (
        click.option(
            "--threads",
            type=click.IntRange(1, 4096),
            metavar="N",
            envvar=VARIABLE,
            expose_value=False,
            is_eager=True,
            callback=_limit,
            help="The most threads of each process that computes.  [default: one for each core]",
        ),
        click.option("--debug", is_flag=True, help="Show the traceback of a failure."),
        click.option("--ascii", is_flag=True, help="Write ASCII only, without box drawing."),
        click.option(
            "--color",
            type=click.Choice(_COLORS),
            default="auto",
            show_default=True,
            help="How many colours to use. NO_COLOR is obeyed.",
        ),
    ):
        command = option(command)
    return command


def _limit(ctx: click.Context, option: click.Parameter, threads: int | None) -> None:
    if threads is not None:
        limit_threads(threads)


def as_stdout(ctx: click.Context, option: click.Parameter, path: str | None) -> str | None:
    """`-` for the names that systems have for stdout. Opened by name, a file that stdout is
    redirected to would be replaced, with what others have written to it."""
    return "-" if path in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1") else path


@dataclass(frozen=True)
class ReportOptions:
    """How a command prints its report, as its options say.

    Attributes:
        format: of `--format` or `--json`; None for what `output` says.
        output: the file of `-o`; None for stdout.
        force: whether a file that exists is replaced.
        color, ascii, debug: as `appearance` gives them.
    """

    format: str | None
    output: str | None
    force: bool
    color: str
    ascii: bool
    debug: bool

    @property
    def face(self) -> str:
        """The format to print: "text", "json", "markdown" or "html".

        Raises UsageError if the name of the file ends in an unknown suffix.
        """
        from qtui.report.faces.render import choose_format

        return choose_format(self.format, self.output)

    def target(self, *inputs: str | None) -> Target | None:
        """The file of `-o`; None for stdout. `inputs` are the files and models that the command
        reads.

        Call it before the work begins: it raises QtuiError if the file may not be written, and
        UsageError if it says no format.
        """
        from qtui.report.faces.render import choose_format
        from qtui_core.files import STDOUT, target_of

        found = None
        if self.output is not None and self.output != STDOUT:
            found = target_of(self.output, force=self.force, inputs=inputs)
        choose_format(self.format, self.output)
        return found

    def record_target(
        self, record: str | None, target: Target | None, *inputs: str | None
    ) -> Target | None:
        """The file of a command's `--record`, or None without it; `target` and `inputs` are as for
        the report. Raises UsageError if the report would go to the same place, QtuiError if the
        file may not be written."""
        from qtui_core.files import STDOUT, target_of

        if record is None:
            return None
        kept = target_of(record, force=self.force, inputs=inputs)
        if record == STDOUT and target is None:
            raise UsageError("--record - and the report would both go to stdout: give -o FILE too.")
        if target is not None and kept.path == target.path:
            raise UsageError("--record and -o name one file: give two.")
        return kept

    def write(self, document: Document, target: Target | None) -> None:
        """Prints the report to `target`. Raises QtuiError if the file cannot be written."""
        from qtui.report.faces.render import write_report

        write_report(document, self.face, target, color=self.color, ascii=self.ascii)


def report_options(command: Command) -> Command:
    """`--format`, `--json`, `-o FILE` and `--force`, and what `appearance` adds; the command gets
    them as `report`, a ReportOptions. They stand last in its help, wherever this decorator does."""

    @wraps(command)
    def with_report(*args: Any, **values: Any) -> Any:
        report = {field.name: values.pop(field.name) for field in fields(ReportOptions)}
        return command(*args, report=ReportOptions(**report), **values)

    others = len(getattr(command, "__click_params__", ()))
    wrapped = appearance(with_report)
    for option in (
        click.option("--force", is_flag=True, help="Replace a file that is there already."),
        click.option(
            "-o",
            "--output",
            metavar="FILE",
            callback=as_stdout,
            help="Write to this file (.json, .md or .html chooses the format), or - for stdout.",
        ),
        click.option("--json", "format", flag_value="json", help="Short for --format json."),
        click.option(
            "--format",
            "format",
            type=click.Choice(("text", "json", "markdown", "html")),
            default=None,
            help="What to write.  [default: text]",
        ),
    ):
        wrapped = option(wrapped)
    return _last_in_help(wrapped, others)


def _last_in_help(command: Command, others: int) -> Command:
    """The command with its options after the first `others` at the end of its help."""
    params: list[click.Parameter] = vars(command)["__click_params__"]  # the help's, backwards
    params[:] = [*params[others:], *params[:others]]
    return command


@dataclass(frozen=True)
class GateOptions:
    """What `--fail-if` and `--baseline` gave a command."""

    fail_if: tuple[str, ...]
    baseline: str | None

    def of(self, command: str) -> Gates | None:
        """The gates, read for a command of `qtui_core.gates`; None without any.

        Call it before the work begins: it raises UsageError for a gate that the command cannot
        hold.
        """
        if not self.fail_if and self.baseline is None:
            return None
        from qtui.report.faces.json_face import SCHEMA_VERSION
        from qtui_core.gates import read_gates

        return read_gates(command, self.fail_if, self.baseline, schema_version=SCHEMA_VERSION)


def write_gated(
    report: ReportOptions, document: Document, target: Target | None, gates: Gates | None
) -> None:
    """Prints the report, with what became of the gates; without gates as `report.write` does.

    Raises QtuiError (exit code 1) after it if rows failed, and UsageError for a baseline of
    another model or with other settings where these decide.
    """
    if gates is None:
        report.write(document, target)
        return
    from qtui.report.gates import with_gates

    try:
        verdict = gates.judge(document.data)
    except QtuiError:
        report.write(document, target)  # what was measured is not lost
        raise
    report.write(with_gates(document, verdict), target)
    if verdict.fallen:
        raise QtuiError(verdict.sentence)


def gate_options(example: str) -> Callable[[Command], Command]:
    """`--fail-if` and `--baseline`; the command gets them as `gates`, a GateOptions. They stand in
    its help after the options of decorators that are nearer to it. `example`: gates that the
    command has."""

    def decorate(command: Command) -> Command:
        return _with_gates(command, example)

    return decorate


def _with_gates(command: Command, example: str) -> Command:
    @wraps(command)
    def with_gate_options(*args: Any, fail_if: Any, baseline: Any, **values: Any) -> Any:
        if len(baseline) > 1:  # the last alone would pass for all
            raise UsageError("--baseline takes one file: run the command once for each.")
        earlier = baseline[0] if baseline else None
        return command(*args, gates=GateOptions(tuple(fail_if), earlier), **values)

    others = len(getattr(command, "__click_params__", ()))
    wrapped = click.option(
        "--baseline",
        multiple=True,
        metavar="FILE",
        help="Exit with 1 if a figure is worse than in this earlier --json of the same command.",
    )(with_gate_options)
    wrapped = click.option(
        "--fail-if",
        multiple=True,
        metavar="GATE",
        help=f"Exit with 1 if this holds of a figure of --json, such as {example}. A wrong name "
        f"lists those that there are. May be given several times.",
    )(wrapped)
    return _last_in_help(wrapped, others)
