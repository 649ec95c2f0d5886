"""Mixtures of experts, by `Moe.style`: a router chooses experts for each token, the tokens are
sorted by expert, and all experts work in one product (grouped_mm, which transformers 5 uses if the
GPU supports it)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from qtui_core.memory.shape.model_shape import Linear, Moe, Norm, Parameter
from qtui_core.memory.shape.packings import STORED
from qtui_core.memory.tape.blocks.modules import activation, gated, normalize, project
from qtui_core.memory.tape.blocks.weights import Weights
from qtui_core.memory.tape.operations import bmm, grouped_product, linear, softmax
from qtui_core.memory.tape.tape import Tape
from qtui_core.memory.tape.tensors import EPS, SCALE, Gradients, Tensor

#: Logits of the router, the weights of the chosen experts, and their indices.
Routed = tuple[Tensor, Tensor, Tensor]


def _rows(hidden: Tensor) -> Tensor:
    """`hidden.view(-1, hidden_size)`: the tokens of all sequences one after another."""
    rows = hidden.alias()
    rows.flat = True
    return rows


def mixtral(weights: Weights, spec: Moe, hidden: Tensor) -> Tensor:
    """MixtralSparseMoeBlock.forward, also that of Qwen 3 and GraniteMoe. The logits of the router
    live as `_` until it returns."""
    hidden = _rows(hidden)
    _logits, top_weights, top_index = _route(weights, spec, hidden)
    return grouped(weights, spec, hidden, top_index, top_weights)


def qwen2(weights: Weights, spec: Moe, hidden: Tensor) -> Tensor:
    """Qwen2MoeSparseMoeBlock.forward: a shared expert with a gate, before the others."""
    assert spec.shared is not None
    assert spec.shared_gate is not None
    hidden = _rows(hidden)
    shared = gated(weights, spec.shared, hidden)
    _logits, top_weights, top_index = _route(weights, spec, hidden)
    output = grouped(weights, spec, hidden, top_index, top_weights)
    gate = project(weights, spec.shared_gate, hidden).sigmoid()
    shared = gate * shared
    del gate
    return output + shared


def deepseek(weights: Weights, spec: Moe, hidden: Tensor) -> Tensor:
    """DeepseekV3MoE.forward, and that of V2: shared experts after the others."""
    assert spec.shared is not None
    _logits, top_weights, top_index = _route_deepseek(weights, spec, hidden)
    output = grouped(weights, spec, hidden, top_index, top_weights)
    return output + gated(weights, spec.shared, hidden)


def llama4(weights: Weights, spec: Moe, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Llama4TextMoe.forward: every expert works on every token, weighted by its score; the scores
    of experts that are not chosen are zero. Returns the result and the logits of the router."""
    assert spec.shared is not None
    tokens = hidden.elements // spec.hidden
    hidden = _rows(hidden)
    scores, logits = _scores(weights, spec, hidden)
    routed_in = hidden.op("repeat", "sum", hidden.elements * spec.experts)
    # scores.transpose(0, 1).reshape(-1, 1) copies.
    routed_in = routed_in * scores.clone()
    routed_out = _stacked(weights, spec, routed_in)
    output = gated(weights, spec.shared, hidden)
    output = output.add_(routed_out.summed(tokens * spec.hidden, viewed=True))
    return output, logits


def gpt_oss(weights: Weights, spec: Moe, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """GptOssMLP.forward: returns the result and the scores of the chosen experts."""
    hidden = _rows(hidden)
    _logits, scores, indices = _route(weights, spec, hidden)
    return grouped(weights, spec, hidden, indices, scores), scores


def route_gemma4(weights: Weights, spec: Moe, hidden: Tensor) -> Routed:
    """Gemma4TextRouter.forward: of a norm without a weight; chosen scores are scaled by expert."""
    assert isinstance(spec.router, Linear)
    tokens = hidden.elements // spec.hidden
    scale, expert_scale = (weights[each.name] for each in spec.extra)
    hidden = normalize(weights, Norm("router.norm", spec.hidden, "rms-power"), hidden)
    hidden = hidden * scale * SCALE
    hidden.flat = True
    scores = project(weights, spec.router, hidden)
    probabilities = softmax(scores)
    values, index = probabilities.top_k(tokens * spec.top_k)
    values = values.div(values.summed(tokens), inside=True)
    values = values * expert_scale.lookup(index, index.elements)
    return probabilities, values, index


def _route(weights: Weights, spec: Moe, hidden: Tensor) -> Routed:
    """MixtralTopKRouter.forward, and those of Qwen 2, GraniteMoe and gpt-oss."""
    tape = hidden.tape
    before, tape.path = tape.path, spec.router.name.removesuffix(".weight")
    tokens = hidden.elements // spec.hidden
    chosen = tokens * spec.top_k
    assert isinstance(spec.router, Parameter)
    router = _adapted(weights, spec.router)
    bias = weights[spec.extra[0].name] if spec.biases else None
    if spec.style not in ("granitemoe", "gpt_oss"):
        hidden = seen_again(hidden)
    weight = router()
    logits = linear(hidden, weight, bias, spec.hidden, spec.experts)
    if spec.style == "granitemoe":
        logits = logits.to("fp32")
        values, index = logits.top_k(chosen)
        values = softmax(values).to(hidden.dtype)
    elif spec.style == "gpt_oss":
        values, index = logits.top_k(chosen)
        values = softmax(values, values.dtype)
    else:
        probabilities = softmax(logits)
        values, index = probabilities.top_k(chosen)
        if spec.normalized:
            values = values.div(values.summed(tokens), inside=True)
        if spec.style != "mixtral":
            values = values.to(logits.dtype)
    tape.path = before
    return logits, values, index


def seen_again(hidden: Tensor) -> Tensor:
    """`hidden.reshape(-1, hidden_size)` of a tensor that has this shape already: a view, whose
    gradient waits until the nodes created after it have run."""
    seen = hidden.op("view", view=True)
    seen.flat = True
    return seen


def grouped(
    weights: Weights, spec: Moe, hidden: Tensor, top_index: Tensor, top_weights: Tensor
) -> Tensor:
    """grouped_mm_experts_forward of transformers.integrations.moe. Biases of the experts of each
    row are looked up before the product to which they are added, and live until the next are."""
    tape = hidden.tape
    before, tape.path = tape.path, spec.stacked[0].name.rpartition(".")[0]
    rows = top_index.elements
    down = _adapted(weights, spec.stacked[1])
    gate_up = _adapted(weights, spec.stacked[0])
    inner, outer = spec.intermediate, spec.hidden
    tape.operation("sort")
    sorted_ids = tape.new(rows, "int64", "sort")
    order = tape.new(rows, "int64", "sort")
    selected = hidden.lookup(tape.new(rows, "int64", "floor_divide"), rows * outer)
    row_weights = top_weights.lookup(order, rows)
    tape.operation("histc")
    _ids = tape.new(rows, "int32", "_to_copy")
    _counts = tape.new(spec.experts, "int32", "histc")
    offsets = tape.new(spec.experts, "int32", "cumsum")
    up_weight = gate_up()
    biases = _biases(weights, spec, 0, sorted_ids, 2 * inner)
    projected = grouped_product(selected, up_weight, offsets, 2 * inner, outer)
    projected = projected if biases is None else projected.add_(biases)
    projected = (_clamped if spec.style == "gpt_oss" else _gated)(spec, projected)
    down_weight = down()
    biases = _biases(weights, spec, 1, sorted_ids, outer)
    projected = grouped_product(projected, down_weight, offsets, outer, inner)
    projected = projected if biases is None else projected.add_(biases)
    weighted = projected * row_weights
    tape.operation("empty_like")
    inverse = tape.new(rows, "int64", "empty_like")  # the original index of each row
    tape.new(rows, "int64", "arange")
    weighted = weighted.lookup(inverse, rows * outer)
    final = weighted.summed(hidden.elements, viewed=True)
    result = final.to(hidden.dtype)
    tape.path = before
    return result


def _gated(spec: Moe, projected: Tensor) -> Tensor:
    """`act(gate) * up`, where both are halves of one product."""
    half = projected.elements // 2
    gate, up = projected.split(half, half)
    return activation(spec.activation, gate) * up


def _biases(weights: Weights, spec: Moe, place: int, ids: Tensor, width: int) -> Tensor | None:
    """The biases of one of the products for each row; None if the experts have none, or the kernels
    for packed ones add them."""
    if not spec.biases or weights.plan.quant == STORED:
        return None
    return weights[spec.biases[place].name].lookup(ids, ids.elements * width)


def _clamped(spec: Moe, projected: Tensor) -> Tensor:
    """GptOssExperts._apply_gate: gate and up are every other element of one product."""
    half = projected.elements // 2
    gate, up = projected.part(half), projected.part(half)
    gate = gate.clamp(1)
    up = up.clamp(2)
    glu = gate * (gate * SCALE).sigmoid()
    return (up + 1.0) * glu


def _scores(weights: Weights, spec: Moe, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Llama4Router.forward: the sigmoid of the chosen logits, and zero for all others."""
    tape = hidden.tape
    before, tape.path = tape.path, spec.router.name.removesuffix(".weight")
    tokens = hidden.elements // spec.hidden
    weight = weights[spec.router.name]
    logits = linear(hidden, weight, None, spec.hidden, spec.experts)
    values, index = logits.top_k(tokens * spec.top_k)
    # full_like(logits, -inf).scatter_(1, index, values)
    scores = values.op("scatter", "gather", logits.elements, saved=index, made="full_like")
    scores = scores.to("fp32").sigmoid().to(scores.dtype)
    tape.path = before
    return scores, logits


def _stacked(weights: Weights, spec: Moe, routed_in: Tensor) -> Tensor:
    """Llama4TextExperts.forward."""
    tape = routed_in.tape
    before, tape.path = tape.path, spec.stacked[0].name.rpartition(".")[0]
    rows = routed_in.elements // spec.hidden
    width = spec.intermediate
    gate_up, down = (weights.operand(parameter.name) for parameter in spec.stacked)
    product = bmm(routed_in, gate_up, rows * 2 * width)
    gate, up = product.split(rows * width, rows * width)
    inner = up * activation(spec.activation, gate)
    result = bmm(inner, down, routed_in.elements)
    tape.path = before
    return result


def _route_deepseek(weights: Weights, spec: Moe, hidden: Tensor) -> Routed:
    """DeepseekV2TopkRouter.forward and DeepseekV3TopkRouter.forward: by scores in float32. V3 (and
    some of V2) first choose the best groups of experts, and then the best experts in these."""
    tape = hidden.tape
    before, tape.path = tape.path, spec.router.name.removesuffix(".weight")
    tokens = hidden.elements // spec.hidden
    given = hidden.to("fp32")
    assert isinstance(spec.router, Parameter)
    weight = _adapted(weights, spec.router)().to("fp32")
    logits = linear(given, weight, None, spec.hidden, spec.experts)
    del given, weight
    choose = _v3 if spec.style == "deepseek_v3" else _v2
    values, index = choose(spec, logits, tokens)
    tape.path = before
    return logits, values, index


def _v2(spec: Moe, logits: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    tape = logits.tape
    scores = softmax(logits)
    if not spec.groups:
        values, index = scores.top_k(tokens * spec.top_k)
        return values * SCALE, index
    tape.operation("max")
    group_scores = tape.new(tokens * spec.groups, "fp32", "topk")
    _best = tape.new(tokens * spec.groups, "int64", "topk")
    outside, *_held = _outside_groups(tape, spec, tokens)
    del group_scores, _best
    masked = scores.masked_fill(outside)
    if not scores.requires_grad:
        del outside
    values, index = masked.top_k(tokens * spec.top_k)
    return values * SCALE, index


def _v3(spec: Moe, logits: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Scores that only decide the choice get no gradient from the loss, but autograd keeps the
    indices of the two best experts of each group as long as the group scores live."""
    tape = logits.tape
    scores = logits.sigmoid()
    tape.operation("add")
    _for_choice = tape.new(scores.elements, "fp32", "scores for the choice")
    tape.operation("topk")
    best_two = tape.new(2 * tokens * spec.groups, "fp32", "topk")
    best_indices = tape.new(2 * tokens * spec.groups, "int64", "topk")
    if not scores.requires_grad:
        del best_indices
    _group_scores = tape.new(tokens * spec.groups, "fp32", "topk")
    del best_two
    outside, *_held = _outside_groups(tape, spec, tokens)
    tape.operation("masked_fill")
    filled = tape.new(scores.elements, "fp32", "scores for the choice")
    if not scores.requires_grad:
        del outside
    _for_choice = filled
    tape.operation("topk")
    unused = tape.new(tokens * spec.top_k, "fp32", "topk")
    index = tape.new(tokens * spec.top_k, "int64", "topk")
    del unused
    values = scores.lookup(index, index.elements)
    if spec.normalized:
        denominator = values.total(tokens) + EPS
        values = values.div(denominator, inside=True)
    return values * SCALE, index


def _outside_groups(tape: Tape, spec: Moe, tokens: int) -> tuple[Tensor, ...]:
    """The mask of experts outside the best groups, and the tensors that live until the router
    returns."""
    tape.operation("topk")
    unused = tape.new(tokens * spec.chosen_groups, "fp32", "topk")
    group_index = tape.new(tokens * spec.chosen_groups, "int64", "topk")
    del unused
    group_mask = tape.new(tokens * spec.groups, "fp32", "mask of groups")
    held: tuple[Tensor, ...] = (group_index, group_mask)
    if spec.groups > 1:  # the mask of one group is expanded to its experts without a copy
        held = (*held, tape.new(tokens * spec.experts, "fp32", "mask of groups"))
    _inside = tape.new(tokens * spec.experts, "bool", "mask of groups")
    outside = tape.new(tokens * spec.experts, "bool", "mask of groups")
    return outside, *held


def _adapted(weights: Weights, spec: Parameter) -> Callable[[], Tensor]:
    """A function that adds a parameter and its adapter; without an adapter it gives the parameter
    itself. Tensors made from the adapter live as long as the function. One sum is made at once,
    without gradients; the caller holds the one that it makes."""
    base, adapter = weights.operand(spec.name), weights.adapter(spec)
    if adapter is None:
        return lambda: base
    tape, (down, up) = base.tape, adapter
    if len(spec.shape) == 3:
        # get_delta_factors: `[experts, outputs, rank]`, in another layout than the stored one, and
        # `[experts, rank, inputs]`.
        up = up.transposed()
        fold = partial(_added_product, base, up.to(base.dtype), down.to(base.dtype))
    else:  # get_delta_weight of a matrix `[outputs, inputs]`: `(up @ down) * scaling`
        outputs, inputs = spec.shape
        product = linear(up, down, None, up.elements // outputs, inputs) * SCALE
        fold = partial(Tensor.add, base, product.to(base.dtype))
        del product
    before, tape.grad = tape.grad, False
    fold()
    tape.grad = before
    return fold


def _added_product(base: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """`torch.baddbmm(base, left, right, alpha=scaling)`, which autocast does not change."""
    tape, dtype = base.tape, base.dtype
    sizes = left.elements, right.elements
    wanted = base.requires_grad, left.requires_grad, right.requires_grad

    def backward(gradient: Tensor) -> Gradients:
        found: list[Tensor | None] = [gradient if wanted[0] else None]
        for size, asked in zip(sizes, wanted[1:], strict=True):
            product = tape.new(size, dtype, "bmm") if asked else None
            found.append(tape.new(size, dtype, "mul") if asked else None)
            del product
        return tuple(found)

    node = tape.node("baddbmm", (base, left, right), backward)
    tape.save(node, left if wanted[2] else None, right if wanted[1] else None)
    return tape.output(node, tape.new(base.elements, dtype, "baddbmm"))


#: The function of each style of mixture, except those that also return the router's logits or
#: scores (Llama 4, gpt-oss).
EXPERTS: Final[dict[str, Callable[[Weights, Any, Tensor], Tensor]]] = {
    **dict.fromkeys(("mixtral", "granitemoe", "qwen3_moe"), mixtral),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), deepseek), "qwen2_moe": qwen2,
}  # fmt: skip
