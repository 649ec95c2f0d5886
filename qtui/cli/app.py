"""`qtui [MODEL]`: the terminal app, where there is a terminal."""

from __future__ import annotations

import os
import shlex
import sys

import click

from qtui.cli.options import appearance
from qtui_core.errors import UsageError


@click.command("app", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", default="demo")
@appearance
@click.pass_context
def command(ctx: click.Context, model: str, color: str, ascii: bool, debug: bool) -> None:
    """Open the terminal app on MODEL."""
    require_terminal(model)
    from qtui.tui.app import run

    ctx.exit(run(model, color=color, ascii=ascii, debug=debug))


def require_terminal(model: str) -> None:
    """Refuses where the app could not draw. Textual would hang without a terminal, and
    write escape codes to a dumb one.

    Raises UsageError, which names the command that works there.
    """
    name = shlex.quote(model)
    instead = f"Use `qtui inspect {name}` (or `qtui inspect {name} --json`) instead."
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(f"The app needs a terminal, and this is not one. {instead}")
    if os.environ.get("TERM", "") in ("", "dumb"):
        raise UsageError(f"The app cannot draw on TERM={os.environ.get('TERM', '')!r}. {instead}")
