"""A whole checkpoint through three schemes: bounded memory, time in proportion to bytes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

pytestmark = pytest.mark.bench

SCHEMES = "nf4:dq,int4:group64,int8:row"
MATRIX = (4096, 4096)
MEMORY_LIMIT = 1.5e9


def checkpoint(folder: Path, matrices: int) -> Path:
    """`matrices` of 64 MiB float32 each."""
    rng = np.random.default_rng(1)
    path = folder / f"{matrices}.safetensors"
    base = rng.standard_normal(MATRIX, dtype=np.float32)
    save_file({f"layers.{i}.weight": base * np.float32(1 + i) for i in range(matrices)}, path)
    return path


def inspect(path: Path) -> tuple[float, int]:
    """Seconds and peak bytes of `qtui inspect --full` of a file that is in the page cache."""
    path.read_bytes()
    code = (
        "import sys\n"
        "from qtui.cli import main\n"
        f"sys.argv = ['qtui', 'inspect', {str(path)!r}, '--full', '--json', '--schemes',"
        f" {SCHEMES!r}]\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print(open('/proc/self/status').read(), file=sys.stderr)\n"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - start
    assert len(json.loads(done.stdout)["schemes"]) == 3
    return seconds, peak_bytes(done.stderr)


def peak_bytes(status: str) -> int:
    """VmHWM of a /proc status: unlike ru_maxrss it does not begin with the parent's."""
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def test_a_gigabyte_in_full(tmp_path):
    small, large = checkpoint(tmp_path, 4), checkpoint(tmp_path, 16)
    quarter = min(inspect(small)[0] for _ in range(2))
    found = [inspect(large) for _ in range(2)]
    whole, memory = min(s for s, _ in found), max(m for _, m in found)
    print(
        f"\n{large.stat().st_size / 1e9:.2f} GB, three schemes, --full: {whole:.1f} s, peak "
        f"{memory / 1e6:.0f} MB; a quarter of it {quarter:.1f} s, {whole / quarter:.2f}x less"
    )
    assert memory <= MEMORY_LIMIT
    # Starting costs the same whatever the size, so four times the bytes take less than four
    # times as long; a tenth is for the noise of the machine.
    assert whole / quarter <= 4.4
