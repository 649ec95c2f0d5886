"""Simulates a full disk with the limit on file sizes of this process."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def room_for(nbytes: int) -> Iterator[None]:
    """Within the block, no file grows beyond `nbytes`; such a write fails with "File too large".
    Python ignores the signal that the system also sends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # Python 3.11 cuts it off
    try:
        yield
    finally:
        sys.dont_write_bytecode = bytecode
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
