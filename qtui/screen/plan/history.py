"""The changes of a plan or of schemes, so that they can be undone and done again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from qtui.screen.plan.shown import GpuChoice
    from qtui_core.memory.plan.options import RunPlan

#: A plan and a GPU; None for any GPU.
Choice = tuple["RunPlan", "GpuChoice | None"]
#: How many changes can be undone.
REMEMBERED = 100


T = TypeVar("T")


class History(Generic[T]):
    """The choices before the current one, and those that were undone. The app has one for the plan
    that its panels share, and each panel with schemes one for these."""

    def __init__(self) -> None:
        self._past: list[T] = []
        self._undone: list[T] = []

    def record(self, before: T) -> None:
        """A change was made by hand; what was undone before it is gone."""
        self._past = [*self._past[1 - REMEMBERED :], before]
        self._undone.clear()

    def undo(self, now: T) -> T | None:
        """What was before `now`; None if nothing was."""
        return _step(now, self._past, self._undone)

    def redo(self, now: T) -> T | None:
        """What `undo` left; None if nothing was undone since the last change."""
        return _step(now, self._undone, self._past)

    def refused(self, now: T) -> None:
        """The last change proved impossible, and `now` is what was before it."""
        while self._past and self._past[-1] == now:
            self._past.pop()

    @property
    def undoes(self) -> bool:
        return bool(self._past)

    @property
    def redoes(self) -> bool:
        return bool(self._undone)


def _step(now: T, source: list[T], target: list[T]) -> T | None:
    while source:
        found = source.pop()
        if found != now:
            target.append(now)
            return found
    return None
