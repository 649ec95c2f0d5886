"""`qtui [MODEL]`: opens the terminal app, if there is a terminal."""

from __future__ import annotations

import os
import shlex
import sys

import click

from qtui.cli.options import appearance
from qtui_core.errors import UsageError


@click.command("app", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", default="")
@appearance
@click.pass_context
def command(ctx: click.Context, model: str, color: str, ascii: bool, debug: bool) -> None:
    """Open the terminal app on MODEL."""
    require_terminal(model or "demo")
    import_asyncio()
    from qtui.tui.start import run

    ctx.exit(run(model, color=color, ascii=ascii, debug=debug))


def import_asyncio() -> None:
    """Without ssl, which asyncio imports where there is one: a twentieth of the start. The app
    connects to no server, its children do."""
    if "ssl" not in sys.modules:
        sys.modules["ssl"] = None  # type: ignore[assignment]
        import asyncio  # noqa: F401

        del sys.modules["ssl"]


def require_terminal(model: str) -> None:
    """Raises UsageError if the app cannot draw here; its message names a command that works."""
    problem = terminal_problem()
    if problem:
        name = shlex.quote(model)
        raise UsageError(
            f"{problem} Use `qtui inspect {name}` (or `qtui inspect {name} --json`) instead."
        )


def terminal_problem() -> str:
    """The sentence that says why the app cannot draw here; "" if it can. Without a terminal Textual
    would hang, and to a dumb one it would write escape codes. In a page of `qtui serve` there is
    none, and textual-serve draws."""
    if os.environ.get("TEXTUAL_DRIVER") == "textual.drivers.web_driver:WebDriver":
        return ""
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        return "The app needs a terminal, and this is not one."
    if os.environ.get("TERM", "") in ("", "dumb"):
        return f"The app cannot draw on TERM={os.environ.get('TERM', '')!r}."
    return ""
