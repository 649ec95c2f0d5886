"""`python -m qtui_core.conformance LIBRARY [--only ID,ID]`: checks one library.

Writes lines of JSON to stdout: `{"version": …}`; for each convention and probe `{"begin": id}` and
then `{"outcome": …}` or `{"fault": …}`; at the end `{"done": true}`. If an outcome is missing after
`begin`, the process died of that check. What the library prints goes to stderr.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from dataclasses import replace
from typing import Any

from qtui_core.codec import to_plain
from qtui_core.conformance.catalogue import find_library
from qtui_core.conformance.checks import checks_of
from qtui_core.conformance.convention import (
    Convention,
    KnownFault,
    Library,
    Probed,
    Verdict,
)
from qtui_core.conformance.convention import Outcome as Found
from qtui_core.extras import installed_version


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m qtui_core.conformance")
    parser.add_argument("library")
    parser.add_argument("--only", help="ids, joined by commas")
    options = parser.parse_args(arguments)
    library = find_library(options.library)
    only = None if options.only is None else set(options.only.split(","))
    report = _claim_stdout()
    try:
        importlib.import_module(library.module)
    except ModuleNotFoundError as error:
        if error.name != library.module:
            raise
        _tell(report, version=None, done=True)
        return
    _tell(report, version=_version(library))
    _run(library, only, report)
    _tell(report, done=True)


def _claim_stdout() -> Any:
    """The real stdout, for this program alone; other output, also from C code, goes to stderr."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return own


def _tell(stream: Any, **line: Any) -> None:
    print(json.dumps(line), file=stream, flush=True)


def _version(library: Library) -> str:
    module = sys.modules[library.module]
    return installed_version(library.name) or str(getattr(module, "__version__", "unknown"))


def _run(library: Library, only: set[str] | None, report: Any) -> None:
    checks = checks_of(library)
    for convention in library.conventions:
        if only is None or convention.id in only:
            _tell(report, begin=convention.id)
            _tell(report, outcome=to_plain(_check(convention, getattr(checks, convention.check))))
    for fault in library.faults:
        if only is None or fault.id in only:
            _tell(report, begin=fault.id)
            _tell(report, fault=to_plain(_probe(fault, getattr(checks, fault.probe))))


def _check(convention: Convention, run: Any) -> Found:
    from qtui_core.conformance.compare import Refused, judge

    started = time.perf_counter()
    try:
        found = judge(convention.id, run(convention))
    except Refused as error:
        found = Found(convention.id, Verdict.DIFFERS, example=f"Refused: {error}")
    except Exception as error:
        found = Found(convention.id, Verdict.FAILED, message=_describe(error))
    return replace(found, seconds=round(time.perf_counter() - started, 4))


def _probe(fault: KnownFault, run: Any) -> Probed:
    try:
        present, detail = run()
    except Exception as error:
        return Probed(fault.id, None, _describe(error))
    return Probed(fault.id, present, detail)


def _describe(error: Exception) -> str:
    """The class of an exception and the first line of its message."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__


if __name__ == "__main__":
    main(sys.argv[1:])
