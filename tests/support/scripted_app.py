"""Runs the app with scripted_run.py in place of the training process, and draws pictures as often
as possible."""

import sys
from pathlib import Path

from qtui.tui.panels.train import running

running.COMMAND = (sys.executable, str(Path(__file__).with_name("scripted_run.py")))
running.DRAWN_SECONDS = 0.02

from qtui.cli import main  # noqa: E402

main()
