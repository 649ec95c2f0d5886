"""`qtui serve [MODEL]`: the app in a browser, on this machine."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

import click

from qtui.cli.options import appearance
from qtui_core.extras import importing


@click.command("serve", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", default="demo")
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    default=0,
    help="The port to listen on.  [default: a free one]",
)
@appearance
def command(model: str, port: int, color: str, ascii: bool, debug: bool) -> None:
    """Open the app on MODEL in a browser.

    The server listens on 127.0.0.1 only, and prints an address with a token that is new each
    time. Every page has an app of its own.
    """
    with importing("The app in a browser", "textual-serve"):
        from qtui.cli.browser.server import BrowserServer

    if color == "auto" and not os.environ.get("NO_COLOR"):
        color = "truecolor"  # which a browser has, whatever terminal the server was started in
    looks = ["--color", color, *["--ascii"][: int(ascii)], *["--debug"][: int(debug)]]
    with suppress(KeyboardInterrupt):  # its usual end
        asyncio.run(BrowserServer([model, *looks], port).run())
