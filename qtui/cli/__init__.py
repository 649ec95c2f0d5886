"""The command line: `qtui` (program.py) and its commands, one file each in `commands`."""

import gc
import sys


def main() -> None:
    """The console script. It imports inside: Ctrl+C during the imports shows no traceback."""
    # Imports make no garbage; the collector is switched on again once the command is loaded.
    gc.disable()
    try:
        from qtui.cli.exits import run_and_exit
        from qtui.cli.program import cli
    except KeyboardInterrupt:
        sys.exit(130)
    run_and_exit(cli)


__all__ = ["main"]
