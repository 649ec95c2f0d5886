"""What a caller hears of work that takes long, and how it stops it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from qtui_core.errors import QtuiError


class Cancelled(QtuiError):
    """The caller asked to stop before the end."""

    exit_code = 130


class Job:
    """Work that takes long, as its caller sees it. A function that takes one calls `at` between
    pieces of its work; `Job()` neither hears nor stops anything.

    Args:
        report: called as `report(done, total, words)` on the calling thread: how much of `total` is
            done, in any unit; a `total` of 0 is not known. `words` name what is at work.
        cancelled: called between pieces; work ends with Cancelled as soon as it is true.
        threads: how many to use; chosen by the size of the work if None. Results do not depend on
            it.
    """

    def __init__(
        self,
        report: Callable[[float, float, str], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
        threads: int | None = None,
    ) -> None:
        self.report, self.cancelled, self.threads = report, cancelled, threads

    def check(self) -> None:
        """Raises Cancelled if the caller asked to stop."""
        if self.cancelled is not None and self.cancelled():
            raise Cancelled("The work was cancelled.")

    def at(self, done: float, total: float = 1.0, words: str = "") -> None:
        """Reports how much is done. Raises Cancelled if the caller asked to stop."""
        if self.report is not None:
            self.report(done, total, words)
        self.check()

    def part(self, start: float, stop: float, name: str = "") -> Job:
        """The job of a part of this one: its 0 to `total` is the share `start` to `stop` of the
        whole, each in [0, 1]; `name` stands for words of its own. A part of no width reports
        nothing."""
        report = self.report

        def within(done: float, total: float, words: str) -> None:
            assert report is not None
            report(stop - (stop - start) * (1 - done / (total or 1.0)), 1.0, words or name)

        return Job(within if report and start < stop else None, self.cancelled, self.threads)

    def parts(self, sizes: Sequence[float]) -> Iterator[Job]:
        """The jobs of parts that follow each other, by what each takes in any unit."""
        total, done = sum(sizes) or 1.0, 0.0
        for size in sizes:
            yield self.part(done / total, (done + size) / total)
            done += size


#: Work that nobody follows.
IDLE = Job()
