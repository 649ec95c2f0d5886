"""Looking rows of a table up."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.record import Label
from qtui_core.memory.tape import Gradients, Tape, Tensor

EMBEDDING: Final = Label("embedding")
EMBEDDING_BACKWARD: Final = Label("embedding_dense_backward")


def embedding(tape: Tape, table: Tensor, indices: Tensor, columns: int) -> Tensor:
    """`F.embedding(indices, table)`: `[indices, columns]`. Its gradient is dense, of the size of
    the table."""
    size = table.elements

    def backward(gradient: Tensor) -> Gradients:
        return (tape.new(size, gradient.dtype, EMBEDDING_BACKWARD),)

    node = tape.node("embedding", (table,), backward)
    tape.save(node, indices)
    return tape.output(node, tape.new(indices.elements * columns, table.dtype, EMBEDDING))
