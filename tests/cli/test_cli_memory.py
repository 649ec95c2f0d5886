"""A model that is larger than the allowed memory is still inspected completely."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

_PEAK = """
import resource, subprocess, sys
subprocess.run([sys.executable, "-m", "qtui", *sys.argv[1:]], check=True,
               stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def sparse_checkpoint(path: Path, rows: int) -> Path:
    """One F32 matrix of zeros `[rows, 4096]` that takes no space on disk."""
    size = rows * 4096 * 4
    entry = {"w": {"dtype": "F32", "shape": [rows, 4096], "data_offsets": [0, size]}}
    header = json.dumps(entry).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    return path


def peak_kilobytes(path: Path) -> int:
    """Largest resident set of `qtui inspect --full` on a file."""
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, "inspect", str(path), "--full", "--schemes", "nf4,int8,e4m3"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(done.stdout)


@pytest.mark.slow
def test_memory_of_a_full_inspection_does_not_grow_with_the_model(tmp_path):
    small = peak_kilobytes(sparse_checkpoint(tmp_path / "small.safetensors", 1024))
    large = peak_kilobytes(sparse_checkpoint(tmp_path / "large.safetensors", 48 * 1024))
    # 0.8 GB of weights; the mapped pages are released every 256 MiB.
    assert large - small < 400_000
