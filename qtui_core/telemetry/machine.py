"""The computer that this runs on: processor, memory, operating system. Standard library only.

Each value may be None by itself: a container may hide files, and other systems have other files.
"""

from __future__ import annotations

import platform
import resource
import sys
from pathlib import Path

from qtui_core.dataclass import dataclass
from qtui_core.quantities import format_bytes
from qtui_core.threads import text_of, thread_limit, usable_cores

#: The instruction sets by which libraries choose their kernels, in Linux's spelling.
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "sve")


@dataclass(frozen=True)
class Machine:
    """The computer. Memory is in bytes. `memory_limit` is the limit of the container, job or
    shell, if there is one; `cores` is how many cores this process may use, and `threads` with how
    many a process of qtui computes."""

    system: str
    kernel: str
    architecture: str
    python: str
    python_path: str
    processor: str | None
    instructions: tuple[str, ...]
    cores: int
    memory_total: int | None
    memory_available: int | None
    memory_limit: int | None
    threads: int | None = None

    @property
    def usable_memory(self) -> int | None:
        """Bytes that this process may take when nothing else runs; None if unknown."""
        return _least(self.memory_total, self.memory_limit)

    @property
    def free_memory(self) -> int | None:
        """Bytes that can be taken now without swapping, and within the limit; None if unknown."""
        return _least(self.memory_available, self.memory_limit)

    PRINTED = (
        "system", "kernel", "architecture", "python", "python_path", "processor", "instructions",
        "cores", "threads", ("memory_total_bytes", "memory_total"),
        ("memory_available_bytes", "memory_available"), ("memory_limit_bytes", "memory_limit"),
    )  # fmt: skip


def read_machine(root: Path = Path("/")) -> Machine:
    """The computer, read from `/proc` and similar files below `root`, which tests replace."""
    memory = _fields(root / "proc/meminfo")
    processor = _fields(root / "proc/cpuinfo")
    flags = processor.get("flags", processor.get("Features", "")).split()
    return Machine(
        system=_fields(root / "etc/os-release", "=").get("PRETTY_NAME", "").strip("\"'")
        or platform.system(),
        kernel=f"{platform.system()} {platform.release()}",
        architecture=platform.machine(),
        python=platform.python_version(),
        python_path=sys.executable,
        processor=processor.get("model name") or platform.processor() or None,
        instructions=tuple(name for name in _INSTRUCTIONS if name in flags),
        cores=usable_cores(root),
        threads=thread_limit(),
        memory_total=_kilobytes(memory.get("MemTotal")),
        memory_available=_kilobytes(memory.get("MemAvailable")),
        memory_limit=_least(_memory_limit(root), address_limit()),
    )


def more_memory() -> str:
    """A sentence on what to do where the memory of this process ran out."""
    limit = address_limit()
    if limit is None:
        return "End other programs that hold memory, or take a smaller model."
    return (
        f"A limit of the shell gives each process {format_bytes(limit)} (`ulimit -v`): raise it, "
        "and start qtui again."
    )


def _least(*amounts: int | None) -> int | None:
    return min((amount for amount in amounts if amount is not None), default=None)


def _fields(path: Path, mark: str = ":") -> dict[str, str]:
    """The fields of a file with lines `name: value`; of repeated names the first. Empty if the file
    is missing."""
    pairs = [line.partition(mark) for line in reversed(text_of(path).splitlines()) if mark in line]
    return {name.strip(): value.strip() for name, _, value in pairs}


def _kilobytes(text: str | None) -> int | None:
    """Bytes of a text like `24684084 kB`."""
    number = (text or "").split(" ")[0]
    return int(number) * 1024 if number.isdecimal() else None


def _memory_limit(root: Path) -> int | None:
    """The memory limit of the control group (version 2, else 1) in bytes; None if there is none, or
    if it is larger than any machine."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        text = text_of(root / "sys/fs/cgroup" / name).strip()
        if text.isdecimal() and int(text) < 1 << 60:
            return int(text)
    return None


def address_limit() -> int | None:
    """The limit on the address space of this process in bytes (`ulimit -v`); None if there is none.
    No file is read, as this is asked where memory has run out."""
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if soft == resource.RLIM_INFINITY else soft
