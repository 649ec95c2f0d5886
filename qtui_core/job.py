"""What a caller hears of work that takes long, and how it stops it."""

from __future__ import annotations

from collections.abc import Callable

from qtui_core.errors import QtuiError


class Cancelled(QtuiError):
    """The caller asked to stop before the end."""

    exit_code = 130


class Job:
    """Work that takes long, as its caller sees it. A function that takes one calls `at` between
    pieces of its work; `Job()` neither hears nor stops anything.

    Args:
        report: called as `report(done, total, words)` on the thread that works: how much of `total`
            is done, in any unit; a `total` of 0 is not known. `words` name what is at work.
        cancelled: called between pieces; work ends with Cancelled as soon as it is true.
    """

    def __init__(
        self,
        report: Callable[[float, float, str], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self.report = report
        self.cancelled = cancelled

    def check(self) -> None:
        """Raises Cancelled if the caller asked to stop."""
        if self.cancelled is not None and self.cancelled():
            raise Cancelled("The work was cancelled.")

    def at(self, done: float, total: float = 1.0, words: str = "") -> None:
        """Reports how much is done. Raises Cancelled if the caller asked to stop."""
        if self.report is not None:
            self.report(done, total, words)
        self.check()

    def part(self, start: float, stop: float) -> Job:
        """The job of a part of this one: its 0 to `total` is the share `start` to `stop` of the
        whole, each in [0, 1]. A part of no width reports nothing."""
        report = self.report
        if report is None or start == stop:
            return Job(cancelled=self.cancelled)

        def within(done: float, total: float, words: str) -> None:
            report(start + (stop - start) * done / (total or 1.0), 1.0, words)

        return Job(within, self.cancelled)
