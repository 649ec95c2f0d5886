"""The order in which a tensor is looked at: the picture first, the other scheme last."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from qtui.tui.panels.quantize_data import ErrorMap, ErrorNumbers, TensorNumbers
from qtui.tui.panels.quantize_feed import QuantizeFeed
from qtui.tui.widgets.histogram import HistogramData


@dataclass(frozen=True)
class Look:
    """What is to be looked at: one tensor, schemes by slot, and the room for pictures."""

    model: str
    tensor: str
    schemes: tuple[str, ...]
    active: int
    cells: tuple[int, int]
    bins: int


@dataclass(frozen=True)
class SchemeErrors:
    """The numbers of the scheme in a slot."""

    slot: int
    numbers: ErrorNumbers


Finding = ErrorMap | SchemeErrors | HistogramData | TensorNumbers
Activity = Callable[[str, float], None]


async def findings(feed: QuantizeFeed, look: Look, activity: Activity) -> AsyncIterator[Finding]:
    """Everything there is to show, as it becomes known. `activity` hears what is being done
    and how far it is. Raises what the feed raises."""

    def heard(label: str) -> Callable[[float, object], None]:
        return lambda fraction, _: activity(label, fraction)

    model, tensor, scheme = look.model, look.tensor, look.schemes[look.active]
    yield await feed.error_map(model, tensor, scheme, look.cells, heard("error map"))
    numbers = await feed.errors(model, tensor, scheme, heard("error"))
    yield SchemeErrors(look.active, numbers)
    histogram = await feed.histogram(model, tensor, look.bins, heard("histogram"))
    if histogram is not None:
        yield histogram
    yield await feed.numbers(model, tensor, heard("statistics"))
    for slot, other in enumerate(look.schemes):
        if slot != look.active:
            numbers = await feed.errors(model, tensor, other, heard(f"error of {other}"))
            yield SchemeErrors(slot, numbers)
