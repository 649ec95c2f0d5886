"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

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


def _as_stdout(ctx: click.Context, option: click.Parameter, path: str | None) -> str | None:
    """The names that a system has for stdout mean `-`: a file that stdout is sent to would be
    replaced, and with it what others have written there."""
    return "-" if path in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1") else path


def report_format(command: Command) -> Command:
    """`--format`, `--json` and `-o FILE`; the command gets `format` (or None) and `output`."""
    for option in (
        click.option(
            "-o",
            "--output",
            metavar="FILE",
            callback=_as_stdout,
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
