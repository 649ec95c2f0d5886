"""The bytes that are alive in each phase, computed from the events of a run that may have no
end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qtui_core.dataclass import dataclass
from qtui_core.memory.replay import record
from qtui_core.memory.replay.record import ALLOCATE, FREE, PHASE, Component, Event, Label, rounded


@dataclass(frozen=True)
class Closed:
    """A phase that has ended, in bytes: `peak`, the most that was alive in it; `end`, what is alive
    at its end; and both by component."""

    peak: int
    end: int
    held: dict[Component, int]
    peak_held: dict[Component, int]


#: (bytes as CUDA's allocator rounds them, phase in which the buffer was made, label).
_Entry = tuple[int, str, Label]


class Ledger:
    """The buffers that are alive, by their ids. A buffer whose label names no component gets its
    component from its lifetime, as in an estimate; a buffer that is still alive is treated as if it
    stayed alive."""

    def __init__(self) -> None:
        self._alive: dict[int, _Entry] = {}
        self._live = 0
        self._phase = ""

    def close(self, events: Sequence[Event]) -> Closed:
        """Enters all events since the last call. They belong to one phase, which the first event
        begins, or to the rest of a phase."""
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
        component = label.component or record.by_lifetime(born, died.get(number, ""))
        sums[component] = sums.get(component, 0) + size
    return sums
