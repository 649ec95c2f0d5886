"""How many threads compute, and what children are told of it."""

from __future__ import annotations

import math
import os
from pathlib import Path

from every import every

from qtui_core.quant.reading import MAX_THREADS, thread_count
from qtui_core.threads import child_environment, thread_limit, usable_cores

OMP = "OMP_NUM_THREADS"


def made(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_max", ".max")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_cores_are_those_of_the_affinity_and_the_quota(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    group = "proc__self__cgroup"
    every(
        {
            "no control group": ({}, 8),
            "no quota": ({"sys__fs__cgroup__cpu_max": "max 100000\n"}, 8),
            "a quota": ({"sys__fs__cgroup__cpu_max": "250000 100000\n"}, 3),
            "less than a core": ({"sys__fs__cgroup__cpu_max": "50000 100000\n"}, 1),
            "more than all cores": ({"sys__fs__cgroup__cpu_max": "6400000 100000\n"}, 8),
            "of a group below": (
                {group: "0::/a/b\n", "sys__fs__cgroup__a__b__cpu_max": "200000 100000\n"}, 2),
            "of a group between": (
                {group: "0::/a/b\n", "sys__fs__cgroup__a__cpu_max": "400000 100000\n",
                 "sys__fs__cgroup__a__b__cpu_max": "max 100000\n"}, 4),
            "version 1": (
                {"sys__fs__cgroup__cpu__cpu.cfs_quota_us": "300000\n",
                 "sys__fs__cgroup__cpu__cpu.cfs_period_us": "100000\n"}, 3),
            "version 1 without a quota": (
                {"sys__fs__cgroup__cpu__cpu.cfs_quota_us": "-1\n",
                 "sys__fs__cgroup__cpu__cpu.cfs_period_us": "100000\n"}, 8),
            "nonsense": ({"sys__fs__cgroup__cpu_max": "x y z\n"}, 8),
            "a period of nothing": ({"sys__fs__cgroup__cpu_max": "1 0\n"}, 8),
        },
        lambda files, cores: _check(tmp_path / str(math.pi * len(str(files))), files, cores),
    )  # fmt: skip


def _check(root: Path, files: dict[str, str], cores: int) -> None:
    assert usable_cores(made(root, **files)) == cores


def test_children_get_the_threads_that_were_asked_for(monkeypatch):
    monkeypatch.setattr("qtui_core.threads._own_cores", lambda: 8)
    monkeypatch.setattr("qtui_core.threads.usable_cores", lambda: 8)
    monkeypatch.setenv(OMP, "5")
    monkeypatch.setenv("QTUI_THREADS", "3")
    assert (child_environment()[OMP], thread_limit()) == ("3", 3)
    monkeypatch.setenv("QTUI_THREADS", "1")
    assert thread_count(1 << 30, None) == 1
    monkeypatch.delenv("QTUI_THREADS")
    assert (child_environment()[OMP], thread_limit()) == ("5", 8)
    assert thread_count(1 << 30, None) == MAX_THREADS
    monkeypatch.delenv(OMP)
    assert OMP not in child_environment()
    # A quota, which torch does not see.
    monkeypatch.setattr("qtui_core.threads.usable_cores", lambda: 2)
    assert (child_environment()[OMP], thread_limit()) == ("2", 2)
    monkeypatch.setenv(OMP, "5")
    assert child_environment()[OMP] == "5"


def test_a_child_that_waits_gives_its_core_away(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert child_environment()["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")  # what the user has set stays
    assert child_environment()["OMP_WAIT_POLICY"] == "ACTIVE"


def test_the_command_line_limits_and_the_doctor_tells(qtui, monkeypatch):
    for name in ("QTUI_THREADS", OMP, "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "7")  # and is as it was afterwards
    assert qtui("--threads", "2", "formats", "0.1").returncode == 0
    assert (os.environ["QTUI_THREADS"], os.environ[OMP]) == ("2", "2")
    for wrong in ("0", "-1", "many"):
        done = qtui("formats", "0.1", "--threads", wrong)
        assert (done.returncode, "--threads" in done.stderr) == (2, True)
    monkeypatch.setenv("QTUI_THREADS", "lots")
    assert qtui("formats", "0.1").returncode == 2
