"""The command line: `qtui` (program.py) and its commands, one file each in `commands`."""

import gc
import os
import sys


def main() -> None:
    """The console script. It imports inside: Ctrl+C during the imports shows no traceback, and the
    app's first lines are on the screen before them."""
    # Imports make no garbage; the collector is switched on again once the command is loaded.
    gc.disable()
    # Transformers fetches no compiled code, also in child processes, unless the user wants it to.
    os.environ.setdefault("USE_HUB_KERNELS", "NO")
    # A user of a container may have no home folder, without which platformdirs raises.
    if os.path.expanduser("~") == "~":
        os.environ["HOME"] = "/"
    try:
        from qtui.ending import end_in_order

        end_in_order()
        from qtui.cli.commands import COMMANDS
        from qtui.tui.first import screen

        try:
            screen.begin(sys.argv[1:], COMMANDS)
            from qtui.cli.exits import run_and_exit
            from qtui.cli.program import cli

            run_and_exit(cli)
        finally:
            screen.leave()
    except KeyboardInterrupt as interrupt:
        from qtui.ending import end_by_signal

        end_by_signal(interrupt)
        sys.exit(130)
