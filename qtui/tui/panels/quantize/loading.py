"""The numbers of a tensor under the schemes, the active one first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from qtui.screen.tensors.data import ErrorNumbers, TensorNumbers
from qtui.screen.tensors.subject import Subject
from qtui.tui.panels.quantize.feed import QuantizeFeed
from qtui_core.dataclass import dataclass


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
    numbers: ErrorNumbers


@dataclass(frozen=True)
class Explanation:
    """What it all means."""

    sentence: str


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
        return Explanation(await feed.sentence(model, subject, schemes, heard("explanation")))

    model, subject, active = look.model, look.subject, look.active
    others = [slot for slot in range(len(look.schemes)) if slot != active]
    yield await errors(active)
    yield await feed.numbers(model, subject, heard("outliers"))
    yield await explanation([active])
    for slot in others:
        yield await errors(slot)
    yield await explanation([active, *others])
