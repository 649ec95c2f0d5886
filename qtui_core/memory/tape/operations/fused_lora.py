"""Low-rank adapters over 4-bit weights as one autograd function for several layers, as in Unsloth
(unsloth/kernels/fast_lora.py), with the dropout that fms-acceleration added
(fused_ops/unsloth_lora/bnb/fast_lora.py).

Each function saves its input, and with dropout also the input of each adapter. Products of the
adapters are not saved but recomputed. Gradients of the input overwrite the saved input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.replay.record import Label
from qtui_core.memory.shape.storage import BLOCK
from qtui_core.memory.tape.tape import Gradients, Tape, Tensor

DEQUANTIZED: Final = Label("fast_dequantize")
MM: Final = Label("mm")
CAST: Final = Label("_to_copy")
DROPOUT: Final = Label("native_dropout")
DROPOUT_MASK: Final = Label("native_dropout mask")
KEPT: Final = Label("ne")
PRODUCT: Final = Label("mul")
SWIGLU: Final = Label("swiglu_fg_kernel")


@dataclass(frozen=True)
class Adapted:
    """A linear layer over a 4-bit weight, with its adapter.

    Attributes:
        inputs, outputs, rank: its sizes.
        down, up: the matrices of the adapter (lora_A, lora_B).
    """

    inputs: int
    outputs: int
    rank: int
    down: Tensor
    up: Tensor

    @property
    def size(self) -> int:
        return self.inputs * self.outputs


def several(tape: Tape, x: Tensor, layers: Sequence[Adapted], dropout: float) -> list[Tensor]:
    """LoRA_QKV: several layers with the same input."""
    sizes = [(layer.inputs, layer.outputs, layer.rank) for layer in layers]
    elements, x_type = x.elements, x.dtype
    dropped = dropout > 0.0 and tape.training

    def backward(gradients: list[Tensor | None]) -> Gradients:
        of_x = Tensor(elements, x_type, tape.held[0])
        results: list[Tensor] = []
        for inputs, outputs, rank in sizes:
            results += _of_adapter(tape, elements // inputs, inputs, outputs, rank, x_type)
        for index, (inputs, outputs, rank) in enumerate(sizes):
            _add_to(tape, elements, inputs * outputs, rank, x_type, dropped, first=index == 0)
        return (of_x, *results)

    adapters = [matrix for layer in layers for matrix in (layer.down, layer.up)]
    node = tape.node("LoRA_QKV", (x, *adapters), backward, outputs=len(layers))
    x = tape.detach(x)
    made = [_times(tape, x, layer, dropped) for layer in layers]
    tape.save(node, x, *adapters, *(of_adapter for _, of_adapter in made))
    return [tape.output(node, result, index) for index, (result, _) in enumerate(made)]


def single(tape: Tape, x: Tensor, layer: Adapted, dropout: float) -> Tensor:
    """LoRA_W: one layer. The gradient of its input is a new tensor."""
    elements, x_type = x.elements, x.dtype
    inputs, outputs, rank = layer.inputs, layer.outputs, layer.rank
    dropped = dropout > 0.0 and tape.training

    def backward(gradient: Tensor) -> Gradients:
        results = _of_adapter(tape, elements // inputs, inputs, outputs, rank, x_type)
        weight = _dequantized(tape, inputs * outputs, x_type)
        of_x = tape.new(elements, x_type, MM)
        del weight
        _add_low_rank(tape, elements, rank, x_type, dropped)
        return (of_x, *results)

    node = tape.node("LoRA_W", (x, layer.down, layer.up), backward)
    x = tape.detach(x)
    result, of_adapter = _times(tape, x, layer, dropped)
    tape.save(node, layer.down, layer.up, x, of_adapter)
    return tape.output(node, result)


def gated_mlp(
    tape: Tape, x: Tensor, gate: Adapted, up: Adapted, down: Adapted, dropout: float
) -> Tensor:
    """LoRA_MLP with SwiGLU: saves the outputs of gate and up, not their product, and overwrites
    both with gradients."""
    elements, x_type, tokens = x.elements, x.dtype, x.elements // gate.inputs
    hidden, width, rank = gate.inputs, gate.outputs, gate.rank
    dropped = dropout > 0.0 and tape.training

    def backward(gradient: Tensor) -> Gradients:
        of_x = Tensor(elements, x_type, tape.held[0])
        weight = _dequantized(tape, down.size, x_type)
        of_product = tape.new(tokens * width, x_type, MM)
        del weight
        _add_low_rank(tape, tokens * width, rank, x_type, dropped)
        of_down = _of_adapter(tape, tokens, width, hidden, rank, x_type)
        of_up = _of_adapter(tape, tokens, hidden, width, rank, x_type)
        of_gate = _of_adapter(tape, tokens, hidden, width, rank, x_type)
        _add_to(tape, elements, up.size, rank, x_type, dropped, first=True)
        _add_to(tape, elements, gate.size, rank, x_type, dropped, first=False)
        del of_product
        return (of_x, *of_gate, *of_up, *of_down)

    adapters = [matrix for layer in (gate, up, down) for matrix in (layer.down, layer.up)]
    node = tape.node("LoRA_MLP", (x, *adapters), backward)
    x = tape.detach(x)
    gated, of_gate = _times(tape, x, gate, dropped)
    raised, of_up = _times(tape, x, up, dropped)
    product = tape.new(tokens * width, x_type, SWIGLU)
    result, of_down = _times(tape, product, down, dropped)
    # Without dropout x also stands for the input of the last adapter.
    last = of_down if dropped else x
    tape.save(node, x, *adapters, gated, raised, of_gate, of_up, last)
    return tape.output(node, result)


def _times(tape: Tape, x: Tensor, layer: Adapted, dropped: bool) -> tuple[Tensor, Tensor]:
    """matmul_lora: the layer and its adapter on `x`; and the adapter's input."""
    tokens = x.elements // layer.inputs
    weight = _dequantized(tape, layer.size, x.dtype)
    result = tape.new(tokens * layer.outputs, x.dtype, MM)
    del weight
    if dropped:
        x = tape.new(x.elements, x.dtype, DROPOUT)
        mask = tape.new(x.elements, "bool", DROPOUT_MASK)
        del mask
    down = _cast(tape, layer.down, x.dtype)
    narrow = tape.new(tokens * layer.rank, x.dtype, MM)
    del down
    up = _cast(tape, layer.up, x.dtype)
    scaled = tape.new(layer.up.elements, x.dtype, PRODUCT)
    del up
    added = tape.new(tokens * layer.outputs, x.dtype, MM)
    del added, scaled, narrow
    return result, x


def _of_adapter(
    tape: Tape, tokens: int, inputs: int, outputs: int, rank: int, dtype: str
) -> tuple[Tensor, Tensor]:
    """Gradients of an adapter: `x.T @ (dY @ B.T)` and `(A.T @ x.T) @ dY`."""
    narrow = tape.new(tokens * rank, dtype, MM)
    of_down = tape.new(inputs * rank, dtype, MM)
    del narrow
    narrow = tape.new(tokens * rank, dtype, MM)
    of_up = tape.new(outputs * rank, dtype, MM)
    del narrow
    return of_down, of_up


def _add_to(
    tape: Tape, elements: int, size: int, rank: int, dtype: str, dropped: bool, *, first: bool
) -> None:
    """`dX += dY @ W.T` and the same for the adapter; the first product is written into dX."""
    weight = _dequantized(tape, size, dtype)
    if not first:
        product = tape.new(elements, dtype, MM)
        del product
    del weight
    _add_low_rank(tape, elements, rank, dtype, dropped)


def _add_low_rank(tape: Tape, elements: int, rank: int, dtype: str, dropped: bool) -> None:
    """`dX += (x != 0) * (dY @ B @ A)`, with the mask only after a dropout."""
    kept = tape.new(elements, "bool", KEPT) if dropped else None
    product = tape.new(elements, dtype, MM)
    if dropped:
        masked = tape.new(elements, dtype, PRODUCT)
        del masked
    del product, kept


def _dequantized(tape: Tape, size: int, dtype: str) -> Tensor:
    """fast_dequantize: the whole weight, and temporarily its block absmaxes in float32."""
    weight = tape.new(size, dtype, DEQUANTIZED)
    maxima = tape.new(-(-size // BLOCK), "fp32", DEQUANTIZED)
    del maxima
    return weight


def _cast(tape: Tape, x: Tensor, dtype: str) -> Tensor:
    return x if x.dtype == dtype else tape.new(x.elements, dtype, CAST)
