"""A child's run without a screen: heard to its end, narrated on stderr, recorded if wanted, and
stopped by Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Generic, Self, TypeVar

from qtui.cli.exits import Narrator
from qtui.ending import say
from qtui.engine.child_lines import ChildLines
from qtui.engine.waiting import LOOK_SECONDS
from qtui_core.recorded_lines import Recorder

T = TypeVar("T")
#: The exit codes that a run may end with (qtui.cli.exits).
_CODES = (1, 2, 3, 4)


class RecordingSink(Generic[T]):
    """The recording of a run, if one is wanted, as a `with` block. If the disk is full, the
    recording ends and the run continues, as its report is still wanted.

    Attributes:
        incomplete: whether the disk did not take all of it.
    """

    def __init__(self, recorder: Recorder[T] | None, tell: Callable[[str], None]) -> None:
        """`tell` takes the sentence about a recording that ends early."""
        self._recorder = recorder
        self._tell = tell
        self.incomplete = False

    def write(self, event: T) -> None:
        """Records a line."""
        if self._recorder is None or self.incomplete:
            return
        try:
            self._recorder.write(event)
        except OSError as error:
            self.incomplete = True
            what = "ends here" if self._recorder.begun else "is not made"
            self._tell(
                f"The recording {self._recorder.target.name!r} {what} "
                f"({error.strerror or error}); the run goes on."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._recorder is not None:
            self._recorder.__exit__(*error)


class ChildRun(Generic[T]):
    """One run of a child.

    Attributes:
        interrupted: whether Ctrl-C ended it.
        recording: of its events.
    """

    def __init__(self, child: ChildLines, recorder: Recorder[T] | None) -> None:
        self._child = child
        self._narrator = Narrator()
        self._told: set[str] = set()
        self.recording = RecordingSink(recorder, self.say)
        self.interrupted = False

    async def follow(
        self,
        stream: AsyncGenerator[T, None],
        hear: Callable[[T], bool],
        failed: Callable[[], bool],
        *,
        debug: bool,
    ) -> None:
        """Hears all of `stream`. `hear` says of each whether it is recorded; once the run has
        `failed`, `debug` shows the last lines of the child's stderr."""
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._narrator)
            stack.enter_context(self.recording)
            stack.enter_context(self._interruptible())
            await stack.enter_async_context(contextlib.aclosing(stream))
            stack.callback(asyncio.create_task(self._watch()).cancel)
            async for event in stream:
                if hear(event):
                    self.recording.write(event)
        if debug and failed():
            for line in self._child.stderr_tail:
                say(line)

    def say(self, sentence: str) -> None:
        """A line of narration."""
        self._narrator.say(f"qtui: {sentence}")

    def say_once(self, sentence: str) -> None:
        """The same, unless it was said before."""
        if sentence not in self._told:
            self._told.add(sentence)
            self.say(sentence)

    def exit_code(self, done: bool) -> int:
        """Of the command, whose run is `done` or not."""
        if done or self.interrupted:
            return 1 if self.recording.incomplete else 0
        code = self._child.exit_code
        return code if code in _CODES else 1

    async def _watch(self) -> None:
        """Says when the child stops answering, and when it answers again."""
        silent = False
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            silence = self._child.silence()
            if silence and not silent:
                self.say(f"{silence} Ctrl-C ends it.")
            elif silent and not silence:
                self.say("The run answers again.")
            silent = bool(silence)

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """The first Ctrl-C asks the run to stop, a second one kills it; its reports are kept."""
        loop = asyncio.get_running_loop()
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            yield
            return
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    def _interrupt(self) -> None:
        if self.interrupted:
            self._child.kill()
        else:
            self.interrupted = True
            self._child.stop()
