"""Counts how often a reader changes files when following an object from call to call.

The reader follows a plan from the command line to the printed estimate, or a scheme from the key to
the heatmap, through every function to which it is passed. A *stay* is a row of such calls into
functions of one file, one after the other; a *return* is a stay in a file in which the reader has
been before.

- A call counts if one of its arguments is a plan: what was typed, what was resolved from it, and
  what advice changes in it. It also counts if the plan is in a list, tuple or dict.
- The same call from one function to another is followed once, however many layers, GPUs or changes
  of a plan it is made for.
- Properties and methods of the plan itself do not count, because one only reads the row of that
  option. Neither do methods of an object that was made with the plan: the reader saw that class
  when the object was made.

`python tests/support/reading_path.py CONFIG_FOLDER --method full ...` prints the way.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import CO_GENERATOR, CO_VARARGS, CO_VARKEYWORDS
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = f"{Path(__file__).parents[2]}{os.sep}"
#: The product's own files: an environment may lie inside the repository.
OURS = tuple(f"{ROOT}{package}{os.sep}" for package in ("qtui", "qtui_core"))
#: A generator begins at an instruction before this one, and resumes at a later one.
_BEGUN = 4
#: A call is no longer examined once it was not passed the object this many times.
_LOOKS = 50


@dataclass
class Way:
    """The stays, in order: a file, and its functions that were passed the object."""

    stays: list[tuple[str, list[str]]] = field(default_factory=list)

    @property
    def files(self) -> int:
        return len({name for name, _ in self.stays})

    @property
    def returns(self) -> int:
        return len(self.stays) - self.files

    def went_to(self, name: str, function: str) -> None:
        if not self.stays or self.stays[-1][0] != name:
            self.stays.append((name, []))
        self.stays[-1][1].append(function)

    def __str__(self) -> str:
        lines = [f"{name:55} {' '.join(functions)}" for name, functions in self.stays]
        summary = f"{len(self.stays)} stays in {self.files} files, {self.returns} of them returns"
        return "\n".join((*lines, summary))


def handed(frame: FrameType, kind: type) -> bool:
    """Whether a function that begins is passed an object of this kind, and is not one of its
    methods."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    values = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
    if code.co_varnames[:1] == ("self",) and isinstance(values[0], kind):
        return False
    return any(_holds(value, kind) for value in values)


def _holds(value: Any, kind: type) -> bool:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        return any(isinstance(each, kind) for each in value)
    return isinstance(value, kind)


@contextmanager
def followed(kind: type) -> Iterator[Way]:
    """The way of objects of one kind through the functions of qtui that are called within the
    block, in this thread and process."""
    way, seen = Way(), set[tuple[CodeType | None, CodeType]]()
    looks: Counter[tuple[CodeType | None, CodeType]] = Counter()

    def called(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(OURS):
            return
        if code.co_flags & CO_GENERATOR and frame.f_lasti > _BEGUN:
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(OURS):
            caller = caller.f_back
        call = (None if caller is None else caller.f_code, code)
        if call in seen or looks[call] >= _LOOKS:
            return
        looks[call] += 1
        if handed(frame, kind):
            seen.add(call)
            way.went_to(code.co_filename.removeprefix(ROOT), code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        yield way
    finally:
        sys.setprofile(before)


def way_of_plan(command: Callable[[], object]) -> Way:
    """The way of the plan of a `qtui memory` that `command` runs in this process."""
    from qtui_core.memory.plan.options import RunPlan

    with followed(RunPlan) as way:
        command()
    return way


def main() -> None:
    from click.testing import CliRunner

    from qtui.cli.commands.memory import command

    print(way_of_plan(lambda: CliRunner().invoke(command, sys.argv[1:], catch_exceptions=False)))


if __name__ == "__main__":
    sys.path.insert(0, ROOT)
    main()
