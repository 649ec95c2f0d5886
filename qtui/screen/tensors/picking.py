"""The tensors of a model to pick from."""

from __future__ import annotations

from qtui.screen.picker.picking import PickerRow, Picking
from qtui.screen.tensors.list import rank_text
from qtui.screen.tensors.side import TensorSide
from qtui_core.quantities import format_bytes, plural


def tensor_picking(side: TensorSide) -> Picking:
    """The tensors of the list, whatever its filter shows, in the order of the model."""
    entries, times = side.list.entries, side.list.drawing.glyphs.times
    present = side.list.current

    def row(at: int) -> PickerRow:
        entry = entries[at]
        shape = times.join(map(str, entry.shape)) or "scalar"
        facts, note = f"{shape} {entry.dtype}", f"{entry.name}: {entry.shape_text(times)}"
        note += f" {entry.dtype}, {format_bytes(entry.nbytes)}."
        if not entry.readable:
            note += " qtui cannot read its values yet."
        elif entry.name in side.ranks:
            rank = rank_text(side.ranks[entry.name])
            facts, note = f"{rank}  {facts}", f"{note} SQNR {rank} when the list was ranked."
        return PickerRow(facts, note)

    return Picking(
        title="Tensor",
        names=[entry.name for entry in entries],
        row=row,
        none=f"None of {plural(len(entries), 'tensor')} has these letters in this order.",
        at=entries.index(present) if present is not None else 0,
    )
