"""Kernels that overwrite their inputs, from Unsloth (which the fused-ops-and-kernels of
fms-acceleration use too) and Liger: norms, rotary embeddings, a gate and a cross entropy whose
gradients need no second tensor of the same size.

And low-rank adapters over 4-bit weights as one autograd function for several layers, as in Unsloth
(unsloth/kernels/fast_lora.py), with the dropout that fms-acceleration added
(fused_ops/unsloth_lora/bnb/fast_lora.py). Each function saves its input, and with dropout also the
input of each adapter. Products of the adapters are not saved but recomputed. Gradients of the input
overwrite the saved input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.replay.record import Component, Label
from qtui_core.memory.shape.weights import BLOCK
from qtui_core.memory.tape.tape import Tape
from qtui_core.memory.tape.tensors import Buffer, Gradients, Tensor

LOSSES: Final = Label("losses", Component.LOSS)
LOGSUMEXP: Final = Label("logsumexp", Component.LOSS)
COUNT: Final = Label("count_nonzero", Component.LOSS)

#: The most columns that one program of the cross-entropy kernel reads. Larger vocabularies are read
#: by several, each with its own log-sum-exp (MAX_FUSED_SIZE in unsloth/kernels/utils.py).
_WIDEST: Final = 65536


def rms_norm(x: Tensor, weight: Tensor, size: int, *, liger: bool) -> Tensor:
    """Fast_RMS_Layernorm (unsloth/kernels/rms_layernorm.py): saves its uncast input, and the
    reciprocal root mean square of each row in float32. Its input's gradient overwrites that of its
    output; the weight gets none. In LigerRMSNormFunction (liger_kernel/ops/rms_norm.py, in place as
    in LigerRMSNorm) it does; partial sums of that, a float32 row for each multiprocessor, are not
    counted."""
    tape = x.tape
    name = "LigerRMSNormFunction" if liger else "fast_rms_layernorm"
    trained = weight if liger else None
    dtype = weight.dtype if liger and weight.requires_grad else None

    def backward(gradient: Tensor) -> Gradients:
        return gradient, tape.new(size, dtype, "fast_rms_layernorm") if dtype else None

    node = tape.node(name, (x, trained), backward)
    output = tape.new(x.elements, x.dtype, "fast_rms_layernorm")
    roots = tape.new(x.elements // size, "fp32", "fast_rms_layernorm")
    tape.save(node, x, weight, roots)
    return tape.output(node, output)


def silu_times(gate: Tensor, up: Tensor) -> Tensor:
    """LigerSiLUMulFunction (liger_kernel/ops/swiglu.py): saves both factors, and overwrites them
    with their gradients."""
    tape, elements, dtype = gate.tape, gate.elements, gate.dtype

    def backward(gradient: Tensor) -> Gradients:
        of_gate, of_up = tape.held
        return Tensor(elements, dtype, of_gate), Tensor(elements, dtype, of_up)

    node = tape.node("LigerSiLUMulFunction", (gate, up), backward)
    output = tape.new(elements, dtype, "swiglu")
    tape.save(node, gate, up)
    return tape.output(node, output)


def rope(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Fast_RoPE_Embedding (unsloth/kernels/rope_embedding.py): rotates in place, forward and
    backward. The tables are attributes of its context and live as long as the graph."""
    tape = x.tape
    tables = cosines.buffer, sines.buffer

    def backward(gradient: Tensor, kept: tuple[Buffer, ...] = tables) -> Gradients:
        return (gradient,)

    node = tape.node("fast_rope_embedding", (x,), backward)
    return tape.output(node, Tensor(x.elements, x.dtype, x.buffer))


def cross_entropy_in_place(logits: Tensor, labels: Tensor) -> Tensor:
    """Fast_CrossEntropyLoss (unsloth/kernels/cross_entropy_loss.py), and the mean of its losses:
    saves logits, labels and the log-sum-exp of each row; the gradient overwrites the logits."""
    tape, elements, dtype = logits.tape, logits.elements, logits.dtype
    rows = labels.elements
    chunks = -(-(elements // rows) // _WIDEST)
    node = tape.node(
        "Fast_CrossEntropyLoss", (logits,), lambda _: (Tensor(elements, dtype, tape.held[0]),)
    )
    losses = tape.new(rows, "fp32", LOSSES)
    logarithms = tape.new(rows * chunks, "fp32", LOGSUMEXP)
    if chunks > 1:
        logarithms = tape.new(rows, "fp32", LOGSUMEXP)
    tape.save(node, logits, logarithms, labels)
    losses = tape.output(node, losses)
    tape.operation("count_nonzero")
    labelled = tape.new(rows, "bool", COUNT)
    count = tape.new(1, "int64", COUNT)
    del labelled
    return losses.total(1, LOSSES).op("div", LOSSES, saved=count, made=LOSSES)


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


def several(x: Tensor, layers: Sequence[Adapted], dropout: float) -> list[Tensor]:
    """LoRA_QKV: several layers with the same input."""
    tape = x.tape
    elements, x_type = x.elements, x.dtype
    dropped = dropout > 0.0 and tape.training

    def backward(gradients: list[Tensor | None]) -> Gradients:
        of_x = Tensor(elements, x_type, tape.held[0])
        results: list[Tensor] = []
        for layer in layers:
            results += _of_adapter(tape, elements // layer.inputs, layer, x_type)
        for layer in layers:
            _add_to(tape, elements, layer, x_type, dropped, first=layer is layers[0])
        return (of_x, *results)

    adapters = [matrix for layer in layers for matrix in (layer.down, layer.up)]
    node = tape.node("LoRA_QKV", (x, *adapters), backward, outputs=len(layers))
    x = x.detach()
    made = [_times(x, layer, dropped) for layer in layers]
    tape.save(node, x, *adapters, *(of_adapter for _, of_adapter in made))
    return [tape.output(node, result, index) for index, (result, _) in enumerate(made)]


def single(x: Tensor, layer: Adapted, dropout: float) -> Tensor:
    """LoRA_W: one layer. The gradient of its input is a new tensor."""
    tape = x.tape
    elements, x_type = x.elements, x.dtype
    dropped = dropout > 0.0 and tape.training

    def backward(gradient: Tensor) -> Gradients:
        results = _of_adapter(tape, elements // layer.inputs, layer, x_type)
        weight = _dequantized(tape, layer, x_type)
        of_x = tape.new(elements, x_type, "mm")
        del weight
        _add_low_rank(tape, elements, x_type, dropped)
        return (of_x, *results)

    node = tape.node("LoRA_W", (x, layer.down, layer.up), backward)
    x = x.detach()
    result, of_adapter = _times(x, layer, dropped)
    tape.save(node, layer.down, layer.up, x, of_adapter)
    return tape.output(node, result)


def gated_mlp(x: Tensor, gate: Adapted, up: Adapted, down: Adapted, dropout: float) -> Tensor:
    """LoRA_MLP with SwiGLU: saves the outputs of gate and up, not their product, and overwrites
    both with gradients."""
    tape = x.tape
    elements, x_type, tokens = x.elements, x.dtype, x.elements // gate.inputs
    width = gate.outputs
    dropped = dropout > 0.0 and tape.training

    def backward(gradient: Tensor) -> Gradients:
        of_x = Tensor(elements, x_type, tape.held[0])
        weight = _dequantized(tape, down, x_type)
        of_product = tape.new(tokens * width, x_type, "mm")
        del weight
        _add_low_rank(tape, tokens * width, x_type, dropped)
        of_down = _of_adapter(tape, tokens, down, x_type)
        of_up = _of_adapter(tape, tokens, up, x_type)
        of_gate = _of_adapter(tape, tokens, gate, x_type)
        _add_to(tape, elements, up, x_type, dropped, first=True)
        _add_to(tape, elements, gate, x_type, dropped, first=False)
        del of_product
        return (of_x, *of_gate, *of_up, *of_down)

    adapters = [matrix for layer in (gate, up, down) for matrix in (layer.down, layer.up)]
    node = tape.node("LoRA_MLP", (x, *adapters), backward)
    x = x.detach()
    gated, of_gate = _times(x, gate, dropped)
    raised, of_up = _times(x, up, dropped)
    product = tape.new(tokens * width, x_type, "swiglu_fg_kernel")
    result, of_down = _times(product, down, dropped)
    # Without dropout x also stands for the input of the last adapter.
    last = of_down if dropped else x
    tape.save(node, x, *adapters, gated, raised, of_gate, of_up, last)
    return tape.output(node, result)


def _times(x: Tensor, layer: Adapted, dropped: bool) -> tuple[Tensor, Tensor]:
    """matmul_lora: the layer and its adapter on `x`; and the adapter's input."""
    tape = x.tape
    tokens = x.elements // layer.inputs
    weight = _dequantized(tape, layer, x.dtype)
    result = tape.new(tokens * layer.outputs, x.dtype, "mm")
    del weight
    if dropped:
        x = tape.new(x.elements, x.dtype, "native_dropout")
        tape.new(x.elements, "bool", "native_dropout mask")
    down = _cast(layer.down, x.dtype)
    _narrow = tape.new(tokens * layer.rank, x.dtype, "mm")
    del down
    up = _cast(layer.up, x.dtype)
    _scaled = tape.new(layer.up.elements, x.dtype, "mul")
    del up
    tape.new(tokens * layer.outputs, x.dtype, "mm")
    return result, x


def _of_adapter(tape: Tape, tokens: int, layer: Adapted, dtype: str) -> tuple[Tensor, Tensor]:
    """Gradients of an adapter: `x.T @ (dY @ B.T)` and `(A.T @ x.T) @ dY`."""
    narrow = tape.new(tokens * layer.rank, dtype, "mm")
    of_down = tape.new(layer.inputs * layer.rank, dtype, "mm")
    del narrow
    _narrow = tape.new(tokens * layer.rank, dtype, "mm")
    return of_down, tape.new(layer.outputs * layer.rank, dtype, "mm")


def _add_to(
    tape: Tape, elements: int, layer: Adapted, dtype: str, dropped: bool, *, first: bool
) -> None:
    """`dX += dY @ W.T` and the same for the adapter; the first product is written into dX."""
    weight = _dequantized(tape, layer, dtype)
    if not first:
        tape.new(elements, dtype, "mm")
    del weight
    _add_low_rank(tape, elements, dtype, dropped)


def _add_low_rank(tape: Tape, elements: int, dtype: str, dropped: bool) -> None:
    """`dX += (x != 0) * (dY @ B @ A)`, with the mask only after a dropout."""
    _kept = tape.new(elements, "bool", "ne") if dropped else None
    _product = tape.new(elements, dtype, "mm")
    if dropped:
        tape.new(elements, dtype, "mul")


def _dequantized(tape: Tape, layer: Adapted, dtype: str) -> Tensor:
    """fast_dequantize: the whole weight, and temporarily its block absmaxes in float32."""
    size = layer.inputs * layer.outputs
    weight = tape.new(size, dtype, "fast_dequantize")
    tape.new(-(-size // BLOCK), "fp32", "fast_dequantize")
    return weight


def _cast(x: Tensor, dtype: str) -> Tensor:
    return x if x.dtype == dtype else x.tape.new(x.elements, dtype, "_to_copy")
