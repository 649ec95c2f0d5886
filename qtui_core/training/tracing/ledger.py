"""What is alive from one phase to the next: the events of a run without an end, phase by phase."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qtui_core.dataclass import dataclass
from qtui_core.memory.replay.record import ALLOCATE, FREE, PHASE, Component, Event, Label, rounded
from qtui_core.memory.replay.timeline import by_lifetime


@dataclass(frozen=True)
class Closed:
    """A phase that is over, in bytes: the most alive in it, what is alive at its end, and both by
    component."""

    peak: int
    end: int
    held: dict[Component, int]
    peak_held: dict[Component, int]


#: (bytes as CUDA's allocator rounds them, phase it was made in, label).
_Entry = tuple[int, str, Label]


class Ledger:
    """Buffers that are alive, by their ids. What of them is labelled with no component has that of
    its lifetime, as in an estimate; of those that still live, as if they went on to."""

    def __init__(self) -> None:
        self._alive: dict[int, _Entry] = {}
        self._live = 0
        self._phase = ""

    def close(self, events: Sequence[Event]) -> Closed:
        """Enters all events since this was last called: of one phase, which the first of them
        begins, or of the rest of one."""
        before = dict(self._alive)
        made: dict[int, _Entry] = {}
        died: dict[int, str] = {}
        live = peak = self._live
        place = 0
        for number, event in enumerate(events, 1):
            kind = event[0]
            if kind == ALLOCATE:
                size = rounded(event[2])
                self._alive[event[1]] = made[event[1]] = (size, self._phase, event[3])
                live += size
                if live > peak:
                    peak, place = live, number
            elif kind == FREE:
                live -= self._alive.pop(event[1])[0]
                died[event[1]] = self._phase
            elif kind == PHASE:
                self._phase = str(event[1])
        self._live = live
        for event in events[:place]:
            if event[0] == ALLOCATE:
                before[event[1]] = made[event[1]]
            elif event[0] == FREE:
                del before[event[1]]
        return Closed(peak, live, _sums(self._alive.items(), {}), _sums(before.items(), died))


def _sums(entries: Iterable[tuple[int, _Entry]], died: dict[int, str]) -> dict[Component, int]:
    sums: dict[Component, int] = {}
    for number, (size, born, label) in entries:
        component = label.component or by_lifetime(born, died.get(number, ""))
        sums[component] = sums.get(component, 0) + size
    return sums
