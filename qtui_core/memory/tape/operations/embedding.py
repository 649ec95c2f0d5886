"""Looking up rows of a table."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.tape.tape import Gradients, Tape, Tensor

EMBEDDING: Final = Label("embedding")
EMBEDDING_BACKWARD: Final = Label("embedding_dense_backward")


def embedding(
    tape: Tape, table: Tensor, indices: Tensor, columns: int, rows: int | None = None
) -> Tensor:
    """`F.embedding(indices, table)`: `[indices, columns]`. Its gradient is dense, of the size of
    the table. If the table is one GPU's part of `rows`, the gradient has the size of all rows, and
    the part is a view of it (embedding_dense_backward of a DTensor)."""
    own = table.elements
    size = own if rows is None else rows * columns

    def backward(gradient: Tensor) -> Gradients:
        whole = tape.new(size, gradient.dtype, EMBEDDING_BACKWARD)
        return (whole if size == own else tape.alias(whole, own),)

    node = tape.node("embedding", (table,), backward)
    tape.save(node, indices)
    return tape.output(node, tape.new(indices.elements * columns, table.dtype, EMBEDDING))
