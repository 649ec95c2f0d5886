"""Reads a tensor under the schemes: first its picture, then its numbers, with the active scheme
first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from qtui.engine.answers.tensors import Explanation, TensorEntry, TensorNumbers
from qtui.engine.client import EngineState
from qtui.screen.panel.asking import PAUSE_SECONDS, AskingPhase
from qtui.screen.tensors.subject import WEIGHT, Subject
from qtui.tui.panels.quantize.feed import QuantizeFeed
from qtui_core.answers import ErrorReport
from qtui_core.dataclass import dataclass
from qtui_core.models.quoting import printable

if TYPE_CHECKING:
    from qtui.tui.panels.quantize.panel import QuantizePanel

TENSOR: Final = "tensor"


@dataclass(frozen=True)
class Look:
    """A request of the panel: a subject, and the schemes by slot (0 is A, 1 is B)."""

    model: str
    subject: Subject
    schemes: tuple[str, ...]
    active: int


@dataclass(frozen=True)
class SchemeErrors:
    """The errors of the scheme in a slot."""

    slot: int
    numbers: ErrorReport


Finding = SchemeErrors | TensorNumbers | Explanation
Activity = Callable[[str, float], None]


async def findings(feed: QuantizeFeed, look: Look, activity: Activity) -> AsyncIterator[Finding]:
    """Yields the numbers beside the pictures as they become known. `activity` is called with what
    is being done and its progress, 0 to 1. Raises what the feed raises."""

    def heard(label: str) -> Callable[[float, object], None]:
        return lambda fraction, _: activity(label, fraction)

    async def errors(slot: int) -> SchemeErrors:
        scheme = look.schemes[slot]
        return SchemeErrors(
            slot, await feed.errors(model, subject, scheme, heard(f"error of {scheme}"))
        )

    async def explanation(slots: list[int]) -> Explanation:
        schemes = [look.schemes[slot] for slot in slots]
        return await feed.explanation(model, subject, schemes, heard("explanation"))

    model, subject, active = look.model, look.subject, look.active
    others = [slot for slot in range(len(look.schemes)) if slot != active]
    yield await errors(active)
    yield await feed.numbers(model, subject, heard("outliers"))
    yield await explanation([active])
    for slot in others:
        yield await errors(slot)
    yield await explanation([active, *others])


class TensorReader:
    """Reads the panel's subject, and makes it the app's subject."""

    def __init__(self, panel: QuantizePanel) -> None:
        self._panel = panel

    def look(self, *, pause: bool = False) -> None:
        """Reads the chosen tensor under the schemes; cancels the previous reading."""
        panel, shown = self._panel, self._panel.shown
        entry = shown.entry
        if entry is None or not shown.schemes:
            return
        panel.qtui.looked_at = (shown.model, shown.subject)
        panel.body.show_title(entry, shown.subject)
        panel.show_numbers()
        if panel.engine.state is EngineState.LOST:
            # The engine is not restarted here: this tensor may be what ended it.
            panel.engine_lost(panel.engine.detail)
        elif panel.opening is not None:
            panel.say(AskingPhase.OPENING, f"Opening {printable(panel.opening)}")
        elif not entry.readable:
            panel.failed(f"qtui cannot read the dtype {printable(entry.dtype)} yet.")
        elif not entry.elements:
            panel.failed("This tensor is empty: there is nothing to quantize.")
        else:
            shown.explained = False
            panel.say(AskingPhase.WORKING, keep=True)
            panel.if_late(partial(self._clear_stale, entry))
            panel.do(partial(self._read, pause), TENSOR)

    def _clear_stale(self, entry: TensorEntry) -> None:
        """Removes content of another tensor or scheme."""
        panel, shown = self._panel, self._panel.shown
        title = printable(shown.subject.title)
        if shown.source == WEIGHT:
            all_of, of_title = f"all {entry.elements:,} elements", f" of {title}"
        else:
            all_of, of_title = f"the {title}", ""
        if not shown.explained:
            panel.explain(f"Computing what {shown.scheme} does to {all_of}{of_title}.")
        panel.body.view.overdue(f"Reading {all_of}")

    async def _read(self, pause: bool) -> None:
        panel, shown = self._panel, self._panel.shown
        if pause:
            await asyncio.sleep(PAUSE_SECONDS)
        look = shown.look
        await panel.body.view.look(look, self.show_activity)
        async for finding in findings(panel.feed, look, self.show_activity):
            if shown.take(finding):
                panel.speak()
            panel.show_numbers()
        panel.say(AskingPhase.READY, keep=True)

    def show_activity(self, label: str, fraction: float, _: object = None) -> None:
        """Shows in the title what is being done, and its progress, 0 to 1."""
        title = self._panel.body.title_line
        title.activity, title.fraction = label, fraction
