"""What a child process of this program must be given to find the same program."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path


def child_environment() -> dict[str, str]:
    """The environment of a child that is to import the same qtui, also from a source tree.

    Children are started with `python -P`, which keeps the current directory off their path,
    where a user's file may be named like a library; a source tree is then named explicitly.
    """
    environment = dict(os.environ)
    root = str(Path(__file__).resolve().parents[1])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([root, *([inherited] if inherited else [])])
    return environment
