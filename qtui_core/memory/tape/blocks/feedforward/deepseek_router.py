"""How DeepSeek V2 and V3 choose experts: by scores in float32; V3 (and some of V2) first choose the
best groups of experts, and then the best experts in these."""

from __future__ import annotations

from typing import Final

from qtui_core.memory.replay.record import Label
from qtui_core.memory.shape.model_shape import Moe, Parameter
from qtui_core.memory.tape.blocks.feedforward.moe_adapters import AdaptedParameter
from qtui_core.memory.tape.blocks.linear.weights import Weights
from qtui_core.memory.tape.operations.attention import softmax
from qtui_core.memory.tape.operations.linear import linear
from qtui_core.memory.tape.operations.pointwise import add_constant, from_output, scale
from qtui_core.memory.tape.operations.reductions import total
from qtui_core.memory.tape.operations.routing import divide_in_place, gather, masked_fill, top_k
from qtui_core.memory.tape.tape import Tape, Tensor

CHOICE: Final = Label("scores for the choice")
GROUPS: Final = Label("topk")
MASK: Final = Label("mask of groups")


def route(tape: Tape, weights: Weights, spec: Moe, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """DeepseekV2TopkRouter.forward and DeepseekV3TopkRouter.forward: the logits, the weights of the
    chosen experts, float32, and their indices."""
    before = tape.path
    tape.path = spec.router.name.removesuffix(".weight")
    tokens = hidden.elements // spec.hidden
    given = tape.to(hidden, "fp32")
    assert isinstance(spec.router, Parameter)
    weight = tape.to(AdaptedParameter(tape, weights, spec.router).weight(tape), "fp32")
    logits = linear(tape, given, weight, None, spec.hidden, spec.experts)
    del given, weight
    choose = _v3 if spec.style == "deepseek_v3" else _v2
    values, index = choose(tape, spec, logits, tokens)
    tape.path = before
    return logits, values, index


def _v2(tape: Tape, spec: Moe, logits: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    scores = softmax(tape, logits)
    if not spec.groups:
        return _scaled(tape, *top_k(tape, scores, tokens * spec.top_k))
    tape.operation("max")
    group_scores = tape.new(tokens * spec.groups, "fp32", GROUPS)
    _best = tape.new(tokens * spec.groups, "int64", GROUPS)
    outside, *_held = _outside_groups(tape, spec, tokens)
    del group_scores, _best
    masked = masked_fill(tape, scores, outside)
    if not scores.requires_grad:
        del outside
    return _scaled(tape, *top_k(tape, masked, tokens * spec.top_k))


def _v3(tape: Tape, spec: Moe, logits: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Scores that only decide the choice get no gradient from the loss, but autograd keeps the
    indices of the two best experts of each group as long as the group scores live."""
    scores = from_output(tape, "sigmoid", logits)
    tape.operation("add")
    for_choice = tape.new(scores.elements, "fp32", CHOICE)
    tape.operation("topk")
    best_two = tape.new(2 * tokens * spec.groups, "fp32", GROUPS)
    best_indices = tape.new(2 * tokens * spec.groups, "int64", GROUPS)
    if not scores.requires_grad:
        del best_indices
    _group_scores = tape.new(tokens * spec.groups, "fp32", GROUPS)
    del best_two
    outside, *_held = _outside_groups(tape, spec, tokens)
    tape.operation("masked_fill")
    filled = tape.new(scores.elements, "fp32", CHOICE)
    if not scores.requires_grad:
        del outside
    for_choice = filled
    tape.operation("topk")
    unused = tape.new(tokens * spec.top_k, "fp32", GROUPS)
    index = tape.new(tokens * spec.top_k, "int64", GROUPS)
    del unused
    values = gather(tape, scores, index)
    if spec.normalized:
        denominator = add_constant(tape, total(tape, values, tokens))
        values = divide_in_place(tape, values, denominator)
    values = scale(tape, values)
    del for_choice
    return values, index


def _scaled(tape: Tape, values: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    return scale(tape, values), index


def _outside_groups(tape: Tape, spec: Moe, tokens: int) -> tuple[Tensor, ...]:
    """The mask of experts outside the best groups, and the tensors that live until the router
    returns."""
    tape.operation("topk")
    unused = tape.new(tokens * spec.chosen_groups, "fp32", GROUPS)
    group_index = tape.new(tokens * spec.chosen_groups, "int64", GROUPS)
    del unused
    group_mask = tape.new(tokens * spec.groups, "fp32", MASK)
    score_mask = tape.new(tokens * spec.experts, "fp32", MASK)
    inside = tape.new(tokens * spec.experts, "bool", MASK)
    outside = tape.new(tokens * spec.experts, "bool", MASK)
    del inside
    return outside, group_index, group_mask, score_mask
