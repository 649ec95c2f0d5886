"""GPUs to pick from, with their memory and whether the plan fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qtui.screen.picker.picking import PickerRow, Picking
from qtui_core.dataclass import dataclass
from qtui_core.quantities import format_bytes

_VERDICTS = {
    "fits": "The plan fits it.",
    "tight": "The plan is tight on it: it may not fit.",
    "no": "The plan does not fit it.",
}


@dataclass(frozen=True)
class DeviceLine:
    """A device: its name, the bytes that processes can have (None: unknown), the verdict on the
    plan ("" where it is unknown) and what else is known of it now."""

    name: str
    capacity_bytes: int | None
    verdict: str = ""
    note: str = ""


def device_picking(
    lines: Sequence[DeviceLine], at: int, typed: Callable[[str], DeviceLine] | None = None
) -> Picking:
    """One of the devices; `typed` makes another one of a text, or raises UsageError."""

    def row_of(line: DeviceLine) -> PickerRow:
        size = "" if line.capacity_bytes is None else format_bytes(line.capacity_bytes)
        has = f"{line.name} has {size} for processes." if size else f"{line.name}."
        note = " ".join(filter(None, (has, line.note, _VERDICTS.get(line.verdict, ""))))
        return PickerRow("  ".join(filter(None, (line.verdict, size))), note)

    def row_of_text(text: str) -> PickerRow | None:
        return None if typed is None else row_of(typed(text))

    return Picking(
        title="Device",
        names=[line.name for line in lines],
        row=lambda at: row_of(lines[at]),
        none="No device has these letters in this order.",
        at=at,
        hint="letters of the name" if typed is None else "letters of the name, or a memory: 24GiB",
        typed=row_of_text,
    )
