"""A tensor read under the schemes: its picture, then its numbers, the active scheme first."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from qtui.engine.answers.tensors import Explanation, TensorEntry, TensorNumbers
from qtui.engine.client import EngineState
from qtui.screen.panel.asking import PAUSE_SECONDS, AskingPhase
from qtui.screen.tensors.subject import WEIGHT, Subject
from qtui.tui.panels.quantize.feed import QuantizeFeed
from qtui_core.answers.tensors import ErrorReport
from qtui_core.dataclass import dataclass
from qtui_core.models.quoting import printable

if TYPE_CHECKING:
    from qtui.tui.panels.quantize.panel import QuantizePanel

TENSOR: Final = "tensor"


@dataclass(frozen=True)
class Look:
    """What is to be looked at: one subject, and schemes by slot."""

    model: str
    subject: Subject
    schemes: tuple[str, ...]
    active: int


@dataclass(frozen=True)
class SchemeErrors:
    """The numbers of the scheme in a slot."""

    slot: int
    numbers: ErrorReport


Finding = SchemeErrors | TensorNumbers | Explanation
Activity = Callable[[str, float], None]


async def findings(feed: QuantizeFeed, look: Look, activity: Activity) -> AsyncIterator[Finding]:
    """The numbers beside the pictures, as they become known. `activity` hears what is being done
    and how far it is. Raises what the feed raises."""

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
    """Reads what the panel looks at, which is the app's from then on."""

    def __init__(self, panel: QuantizePanel) -> None:
        self._panel = panel

    def look(self, *, pause: bool = False) -> None:
        """Read the chosen tensor under the schemes; what was being read gives up."""
        panel, shown = self._panel, self._panel.shown
        entry = shown.entry
        if entry is None or not shown.schemes:
            return
        panel.qtui.looked_at = (shown.model, shown.subject)
        panel.body.show_title(entry, shown.subject)
        panel.show_numbers()
        if panel.engine.state is EngineState.LOST:
            # Not started by itself: what ended it may have been this tensor, or the next.
            panel.engine_lost(panel.engine.detail)
        elif panel.opening is not None:
            panel.say(AskingPhase.OPENING, f"Opening {printable(panel.opening)}")
        elif not entry.readable:
            panel.failed(f"{printable(entry.dtype)} is a dtype that is not read yet.")
        elif not entry.elements:
            panel.failed("This tensor is empty: there is nothing to quantize.")
        else:
            shown.explained = False
            panel.say(AskingPhase.WORKING, keep=True)
            panel.if_late(partial(self._clear_stale, entry))
            panel.do(partial(self._read, pause), TENSOR)

    def _clear_stale(self, entry: TensorEntry) -> None:
        """Take away what is of another tensor or scheme."""
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
        if not gc.get_freeze_count():
            # What is alive now stays: going through all of it again and again, as the collector
            # does, would hold up a key by 30 ms and more each time.
            gc.freeze()

    def show_activity(self, label: str, fraction: float, _: object = None) -> None:
        """What is being done, and how far it is (0..1)."""
        title = self._panel.body.title_line
        title.activity, title.fraction = label, fraction
