"""The environment in which a child process finds the same program."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from qtui_core.threads import limit_libraries


def child_environment() -> dict[str, str]:
    """The environment of a child that must import the same qtui, also from a source tree.

    Children are started with `python -P`, which leaves the current directory off their path,
    because a user's file there may have the name of a library. So a source tree is named
    explicitly.
    """
    environment = dict(os.environ)
    limit_libraries(environment)
    root = str(Path(__file__).resolve().parents[1])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([root, *([inherited] if inherited else [])])
    return environment
