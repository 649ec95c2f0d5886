"""A child that tells a hand-made run at once and then does what it is told, in place of the one
that trains: `python train_child.py PATH [die|deaf]` tells the lines of a recording after the
request."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path


def main() -> None:
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    asked = json.loads(sys.stdin.readline())
    Path(sys.argv[1]).with_suffix(".asked").write_text(json.dumps(asked))
    print("a warning of a library", file=sys.stderr)
    for line in lines:
        print(line, flush=True)
    if "die" in sys.argv[2:]:
        os.kill(os.getpid(), signal.SIGKILL)
    seconds = json.loads(lines[-1])["seconds"]
    for line in sys.stdin:
        word = json.loads(line)["control"]
        if "deaf" in sys.argv[2:] and word in ("pause", "step"):
            continue  # as one in the middle of a long step
        if word == "stop":
            break
        state = "paused" if word == "pause" else "running"
        print(json.dumps({"told": "state", "seconds": seconds, "state": state}), flush=True)
    print(json.dumps({"told": "end", "seconds": seconds, "reason": "stopped"}), flush=True)


main()
