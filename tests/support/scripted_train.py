"""Runs `qtui` with scripted_run.py in place of the training process."""

import sys
from pathlib import Path

from qtui.engine.run import client as run_client

run_client.WORKER = (sys.executable, str(Path(__file__).with_name("scripted_run.py")))

from qtui.cli import main  # noqa: E402

main()
