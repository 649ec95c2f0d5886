"""Mixtures of experts, by `Moe.style`: a router chooses experts for each token, the tokens are
sorted by expert, and all experts work in one product (grouped_mm, which transformers 5 uses if the
GPU supports it)."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.shape.model_shape import Moe, Parameter
from qtui_core.memory.tape.blocks.feedforward.activations import activation
from qtui_core.memory.tape.blocks.feedforward.deepseek_router import route
from qtui_core.memory.tape.blocks.feedforward.mlp import gated
from qtui_core.memory.tape.blocks.feedforward.moe_adapters import AdaptedParameter
from qtui_core.memory.tape.blocks.linear.linear import project
from qtui_core.memory.tape.blocks.linear.weights import Weights
from qtui_core.memory.tape.operations.attention import softmax
from qtui_core.memory.tape.operations.linear import bmm, linear
from qtui_core.memory.tape.operations.pointwise import add, from_output, mul
from qtui_core.memory.tape.operations.routing import (
    divide_in_place,
    grouped_product,
    lookup,
    repeat_rows,
    summed,
    top_k,
)
from qtui_core.memory.tape.operations.views import contiguous, split
from qtui_core.memory.tape.tape import Tape, Tensor

SORT: Final = Label("sort")
FLOOR: Final = Label("floor_divide")
CAST: Final = Label("_to_copy")
COUNTS: Final = Label("histc")
OFFSETS: Final = Label("cumsum")
EMPTY: Final = Label("empty_like")
ARANGE: Final = Label("arange")
FILLED: Final = Label("full_like")

#: Logits of the router, the weights of the chosen experts, and their indices.
Routed = tuple[Tensor, Tensor, Tensor]


def _rows(tape: Tape, hidden: Tensor) -> Tensor:
    """`hidden.view(-1, hidden_size)`: the tokens of all sequences one after another."""
    rows = tape.alias(hidden)
    rows.flat = True
    return rows


def mixtral(tape: Tape, weights: Weights, spec: Moe, hidden: Tensor) -> Tensor:
    """MixtralSparseMoeBlock.forward, also that of Qwen 3 and GraniteMoe. The logits of the router
    live as `_` until it returns."""
    hidden = _rows(tape, hidden)
    _logits, top_weights, top_index = _route(tape, weights, spec, hidden)
    return _experts(tape, weights, spec, hidden, top_index, top_weights)


def qwen2(tape: Tape, weights: Weights, spec: Moe, hidden: Tensor) -> Tensor:
    """Qwen2MoeSparseMoeBlock.forward: a shared expert with a gate, before the others."""
    assert spec.shared is not None
    assert spec.shared_gate is not None
    hidden = _rows(tape, hidden)
    shared = gated(tape, weights, spec.shared, hidden)
    _logits, top_weights, top_index = _route(tape, weights, spec, hidden)
    output = _experts(tape, weights, spec, hidden, top_index, top_weights)
    gate = from_output(tape, "sigmoid", project(tape, weights, spec.shared_gate, hidden))
    shared = mul(tape, gate, shared)
    del gate
    return add(tape, output, shared)


def deepseek(tape: Tape, weights: Weights, spec: Moe, hidden: Tensor) -> Tensor:
    """DeepseekV3MoE.forward, and that of V2: shared experts after the others."""
    assert spec.shared is not None
    _logits, top_weights, top_index = route(tape, weights, spec, hidden)
    output = _experts(tape, weights, spec, hidden, top_index, top_weights)
    return add(tape, output, gated(tape, weights, spec.shared, hidden))


def llama4(tape: Tape, weights: Weights, spec: Moe, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Llama4TextMoe.forward: every expert works on every token, weighted by its score; the scores
    of experts that are not chosen are zero. Returns the result and the logits of the router."""
    assert spec.shared is not None
    tokens = hidden.elements // spec.hidden
    hidden = _rows(tape, hidden)
    scores, logits = _scores(tape, weights, spec, hidden)
    routed_in = repeat_rows(tape, hidden, spec.experts)
    # scores.transpose(0, 1).reshape(-1, 1) copies.
    routed_in = mul(tape, routed_in, contiguous(tape, scores))
    routed_out = _stacked(tape, weights, spec, routed_in)
    output = gated(tape, weights, spec.shared, hidden)
    total = summed(tape, routed_out, tokens * spec.hidden, viewed=True)
    return _added(tape, output, total), logits


def _route(tape: Tape, weights: Weights, spec: Moe, hidden: Tensor) -> Routed:
    """MixtralTopKRouter.forward, Qwen2MoeTopKRouter.forward, GraniteMoeTopKRouter.forward."""
    before = tape.path
    tape.path = spec.router.name.removesuffix(".weight")
    tokens = hidden.elements // spec.hidden
    chosen = tokens * spec.top_k
    assert isinstance(spec.router, Parameter)
    router = AdaptedParameter(tape, weights, spec.router)
    if spec.style != "granitemoe":
        hidden = _seen_again(tape, hidden)
    logits = linear(tape, hidden, router.weight(tape), None, spec.hidden, spec.experts)
    if spec.style == "granitemoe":
        logits = tape.to(logits, "fp32")
        values, index = top_k(tape, logits, chosen)
        values = tape.to(softmax(tape, values), hidden.dtype)
    else:
        probabilities = softmax(tape, logits)
        values, index = top_k(tape, probabilities, chosen)
        if spec.normalized:
            values = divide_in_place(tape, values, summed(tape, values, tokens))
        if spec.style != "mixtral":
            values = tape.to(values, logits.dtype)
    tape.path = before
    return logits, values, index


def _seen_again(tape: Tape, hidden: Tensor) -> Tensor:
    """`hidden.reshape(-1, hidden_size)` of a tensor that has this shape already: a view, whose
    gradient waits until the nodes created after it have run."""
    node = tape.node("view", (hidden,), lambda gradient: (gradient,))
    seen = tape.detach(hidden)
    seen.flat = True
    return tape.output(node, seen)


def _experts(
    tape: Tape, weights: Weights, spec: Moe, hidden: Tensor, top_index: Tensor, top_weights: Tensor
) -> Tensor:
    """grouped_mm_experts_forward of transformers.integrations.moe."""
    before = tape.path
    tape.path = spec.stacked[0].name.rpartition(".")[0]
    rows = top_index.elements
    gate_up_spec, down_spec = spec.stacked
    down = AdaptedParameter(tape, weights, down_spec)
    gate_up = AdaptedParameter(tape, weights, gate_up_spec)
    inner, outer = spec.intermediate, spec.hidden
    tape.operation("sort")
    sorted_ids = tape.new(rows, "int64", SORT)
    order = tape.new(rows, "int64", SORT)
    selected = lookup(tape, hidden, tape.new(rows, "int64", FLOOR), rows * outer)
    row_weights = lookup(tape, top_weights, order, rows)
    tape.operation("histc")
    ids = tape.new(rows, "int32", CAST)
    counts = tape.new(spec.experts, "int32", COUNTS)
    offsets = tape.new(spec.experts, "int32", OFFSETS)
    up_weight = gate_up.weight(tape)
    projected = grouped_product(tape, selected, up_weight, offsets, 2 * inner, outer)
    projected = _gated(tape, spec, projected)
    down_weight = down.weight(tape)
    projected = grouped_product(tape, projected, down_weight, offsets, outer, inner)
    weighted = mul(tape, projected, row_weights)
    inverse = _inverse(tape, order)
    weighted = lookup(tape, weighted, inverse, rows * outer)
    final = summed(tape, weighted, hidden.elements, viewed=True)
    result = tape.to(final, hidden.dtype)
    tape.path = before
    del sorted_ids, order, selected, row_weights, ids, counts, offsets, up_weight, down_weight
    return result


def _gated(tape: Tape, spec: Moe, projected: Tensor) -> Tensor:
    """`act(gate) * up`, where both are halves of one product."""
    half = projected.elements // 2
    gate, up = split(tape, projected, half, half)
    return mul(tape, activation(tape, spec.activation, gate), up)


def _inverse(tape: Tape, order: Tensor) -> Tensor:
    """The original index of each row."""
    tape.operation("empty_like")
    inverse = tape.new(order.elements, "int64", EMPTY)
    _numbers = tape.new(order.elements, "int64", ARANGE)
    return inverse


def _scores(tape: Tape, weights: Weights, spec: Moe, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Llama4Router.forward: the sigmoid of the chosen logits, and zero for all others."""
    before = tape.path
    tape.path = spec.router.name.removesuffix(".weight")
    tokens = hidden.elements // spec.hidden
    weight = weights[spec.router.name]
    logits = linear(tape, hidden, weight, None, spec.hidden, spec.experts)
    values, index = top_k(tape, logits, tokens * spec.top_k)
    scores = _scattered(tape, logits.elements, values, index)
    scores = tape.to(from_output(tape, "sigmoid", tape.to(scores, "fp32")), scores.dtype)
    tape.path = before
    return scores, logits


def _scattered(tape: Tape, elements: int, values: Tensor, index: Tensor) -> Tensor:
    """`full_like(logits, -inf).scatter_(1, index, values)`."""
    given = values.elements

    def backward(gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (tape.new(given, gradient.dtype, Label("gather")),)

    node = tape.node("scatter", (values,), backward)
    tape.save(node, index)
    return tape.output(node, tape.new(elements, values.dtype, FILLED))


def _stacked(tape: Tape, weights: Weights, spec: Moe, routed_in: Tensor) -> Tensor:
    """Llama4TextExperts.forward."""
    before = tape.path
    tape.path = spec.stacked[0].name.rpartition(".")[0]
    rows = routed_in.elements // spec.hidden
    width = spec.intermediate
    gate_up, down = (weights.operand(parameter.name) for parameter in spec.stacked)
    product = bmm(tape, routed_in, gate_up, rows * 2 * width)
    gate, up = split(tape, product, rows * width, rows * width)
    inner = mul(tape, up, activation(tape, spec.activation, gate))
    result = bmm(tape, inner, down, routed_in.elements)
    tape.path = before
    return result


def _added(tape: Tape, output: Tensor, addend: Tensor) -> Tensor:
    """`output.add_(addend)`."""
    node = tape.node("add", (output, addend), lambda gradient: (gradient, gradient))
    return tape.output(node, Tensor(output.elements, output.dtype, output.buffer))
