"""Checks whether a process has ended, and runs two processes that share a step as two GPUs do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


def in_two_processes(
    script: Path, jobs: Mapping[str, Mapping[str, Any]], folder: Path
) -> dict[str, list[Any]]:
    """Runs `script` in two processes of torchrun; returns, for each job by name, what the two
    processes measured. The script gets the path of a JSON list of jobs. A process writes its JSON
    to the job's `output` followed by its rank."""
    outputs = {name: folder / str(number) for number, name in enumerate(jobs)}
    described = folder / "jobs.json"
    described.write_text(
        json.dumps([{**job, "output": str(outputs[name])} for name, job in jobs.items()])
    )
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    finished = subprocess.run(
        [sys.executable, *torchrun, str(script), str(described)],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    return {
        name: [json.loads(Path(f"{output}.{rank}").read_text()) for rank in range(2)]
        for name, output in outputs.items()
    }


def family(pid: int) -> list[int]:
    """All processes that this one started, and those that they started."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(path.parent.name))
    found = parents.get(pid, [])
    return [*found, *(each for child in found for each in family(child))]


def alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def is_gone(pid: int, within: float = 120.0) -> bool:
    """Whether a process ends within `within` seconds."""
    end = time.monotonic() + within
    while alive(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
