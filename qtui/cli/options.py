"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from qtui_core.files import Target

Command = Callable[..., Any]

_COLORS = ("auto", "truecolor", "256", "16", "none")


def appearance(command: Command) -> Command:
    """`--color`, `--ascii` and `--debug`, which every command takes."""
    for option in (
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


def as_stdout(ctx: click.Context, option: click.Parameter, path: str | None) -> str | None:
    """`-` for the names that systems have for stdout. Opened by name, a file that stdout is
    redirected to would be replaced, with what others have written to it."""
    return "-" if path in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1") else path


def report_format(command: Command) -> Command:
    """`--format`, `--json`, `-o FILE` and `--force`; the command gets `format` (or None), `output`
    and `force`."""
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
        command = option(command)
    return command


def report_target(output: str | None, force: bool, *inputs: str | None) -> Target | None:
    """The file of `-o`; None for stdout. `inputs` are the files and models that the command reads.

    Call it before the work begins: it raises QtuiError where the file may not be written.
    """
    from qtui_core.files import STDOUT, target_of

    if output is None or output == STDOUT:
        return None
    return target_of(output, force=force, inputs=inputs)
