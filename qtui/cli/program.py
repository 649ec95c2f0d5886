"""The `qtui` command itself: finds the command, or takes the word as a model to open.

Only click is imported here; a command's own imports happen when it runs, so that
`qtui --help` answers at once.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

from qtui import __version__
from qtui.cli.exits import run_and_exit

#: Command -> (module, one line of help). The module holds a click command named `command`.
COMMANDS = {
    "inspect": ("qtui.cli.inspect", "What quantizing a model would cost, tensor by tensor."),
    "formats": ("qtui.cli.formats", "A value in every number format."),
}
_APP = "qtui.cli.app"


class _Commands(click.Group):
    """Commands by name; any other first word is a MODEL for the terminal app."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in COMMANDS:
            return _load(COMMANDS[name][0])
        return None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # `qtui`, `qtui MODEL` and `qtui --ascii MODEL` open the app, which has options of
        # its own; only --help and --version belong to the group.
        first_word = next((a for a in args if not a.startswith("-")), None)
        if first_word not in COMMANDS and not {"--help", "-h", "--version"} & set(args):
            args = ["app", *args]
        elif first_word in COMMANDS and args[0] == "--debug":
            args = args[1:]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] == "app":
            return "app", _load(_APP), args[1:]
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in COMMANDS.items()])


def _load(module: str) -> click.Command:
    command: click.Command = importlib.import_module(module).command
    return command


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    options_metavar="",
    subcommand_metavar="[MODEL] | COMMAND ...",
    epilog=(
        "MODEL is a hub id (org/name, or org/name@revision), a folder, a .safetensors file, a "
        "config.json, or demo, the small trained model inside this package."
    ),
)
@click.version_option(__version__, prog_name="qtui")
def cli(**_: Any) -> None:
    """See what every bit costs: number formats, quantization error and outliers of language
    models.

    `qtui [MODEL]` opens the terminal app, on demo if no model is named.
    """


def main() -> None:
    """The console script."""
    run_and_exit(cli)
