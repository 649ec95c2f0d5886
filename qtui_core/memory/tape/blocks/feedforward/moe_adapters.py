"""Adapters over parameters that are no linear layer: stacked experts and routers (peft 0.21,
ParamWrapper in tuners/lora/layer.py).

The adapter is added to the weight before the module runs. This makes a whole weight in the dtype of
the base, which lives as long as the products that use it. When the adapter is registered, the sum
is computed once more as a check (ParametrizationList) and dropped.
"""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.shape.model_shape import Parameter
from qtui_core.memory.tape.blocks.linear.weights import Weights
from qtui_core.memory.tape.operations.linear import linear
from qtui_core.memory.tape.operations.pointwise import add, scale
from qtui_core.memory.tape.operations.views import transposed
from qtui_core.memory.tape.tape import Gradients, Tape, Tensor

BADDBMM: Final = Label("baddbmm")
BMM: Final = Label("bmm")
MUL: Final = Label("mul")


class AdaptedParameter:
    """A parameter with its adapter; without an adapter, the parameter itself. Tensors made from the
    adapter live as long as this object."""

    def __init__(self, tape: Tape, weights: Weights, spec: Parameter) -> None:
        self._base = weights.operand(spec.name)
        adapter = weights.adapter(spec)
        self._parts: tuple[Tensor, ...] = ()
        self._result: Tensor | None = None
        if adapter is None:
            self._result = self._base
            return
        dtype = self._base.dtype
        if len(spec.shape) == 3:
            self._parts = _factors(tape, *adapter, dtype)
        else:
            self._parts = (_difference(tape, *adapter, spec.shape, dtype),)
        before, tape.grad = tape.grad, False
        self._fold(tape)
        tape.grad = before

    def weight(self, tape: Tape) -> Tensor:
        """The weight that the module uses, made on the first call."""
        if self._result is None:
            self._result = self._fold(tape)
        return self._result

    def _fold(self, tape: Tape) -> Tensor:
        if len(self._parts) == 2:
            return _added_product(tape, self._base, *self._parts)
        return add(tape, self._base, self._parts[0])


def _factors(tape: Tape, down: Tensor, up: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
    """get_delta_factors: `[experts, outputs, rank]`, in another layout than the stored one, and
    `[experts, rank, inputs]`."""
    up = transposed(tape, up)
    return tape.to(up, dtype), tape.to(down, dtype)


def _difference(tape: Tape, down: Tensor, up: Tensor, shape: tuple[int, ...], dtype: str) -> Tensor:
    """get_delta_weight of a matrix `[outputs, inputs]`: `(up @ down) * scaling`."""
    outputs, inputs = shape
    rank = up.elements // outputs
    return tape.to(scale(tape, linear(tape, up, down, None, rank, inputs)), dtype)


def _added_product(tape: Tape, base: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """`torch.baddbmm(base, left, right, alpha=scaling)`, which autocast does not change."""
    dtype = base.dtype
    sizes = left.elements, right.elements
    wanted = base.requires_grad, left.requires_grad, right.requires_grad

    def backward(gradient: Tensor) -> Gradients:
        found: list[Tensor | None] = [gradient if wanted[0] else None]
        for size, asked in zip(sizes, wanted[1:], strict=True):
            product = tape.new(size, dtype, BMM) if asked else None
            found.append(tape.new(size, dtype, MUL) if asked else None)
            del product
        return tuple(found)

    node = tape.node("baddbmm", (base, left, right), backward)
    tape.save(node, left if wanted[2] else None, right if wanted[1] else None)
    return tape.output(node, tape.new(base.elements, dtype, BADDBMM))
