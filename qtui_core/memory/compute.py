"""How many operations a step takes, and a lower bound on its time.

An operation is a multiplication or an addition. A matrix product takes two for each parameter and
token; its backward pass takes twice as many, half for the gradient of its input and half for that
of its weight. This gives C = 6ND for a full step: N parameters in products, D tokens (Kaplan et al.
2020, arXiv 2001.08361, section 2.1). Frozen weights have no gradient, which gives 4ND; recomputed
layers add 2ND. Attention adds a part that grows with the square of the sequence.
"""

from __future__ import annotations

from collections.abc import Iterator

from qtui_core.dataclass import dataclass
from qtui_core.memory.devices.device import Device
from qtui_core.memory.plan.run_plan import RunPlan, adapters_of
from qtui_core.memory.shape.model_shape import (
    LatentAttention,
    Layer,
    Linear,
    ModelShape,
    Module,
    Moe,
    Parameter,
    modules_of_layer,
)

#: Products over the pairs of positions: two in the forward pass (scores, values). The backward pass
#: has five if it recomputes the scores (FlashAttention-2, arXiv 2307.08691, section 3.1), and four
#: if they were kept.
_PRODUCTS_FORWARD = 2
_PRODUCTS_BACKWARD = 5
_PRODUCTS_BACKWARD_KEPT = 4


@dataclass(frozen=True)
class Compute:
    """Operations of one step, over all micro batches.

    Attributes:
        matrix_parameters: N: parameters that multiply a token: of experts those that it uses, and a
            tied output layer; embeddings are looked up and do not count.
        tokens: D, of the step.
        forward, recompute, backward: operations; attention is the part of the three that grows with
            the square of the sequence.
        dtype: in which the products are computed.
    """

    matrix_parameters: int
    tokens: int
    forward: int
    recompute: int
    backward: int
    attention: int
    dtype: str

    @property
    def total(self) -> int:
        return self.forward + self.recompute + self.backward

    def seconds_on(self, device: Device) -> float:
        """A lower bound on the time of a step, at the highest rate that the vendor states for the
        dtype. Real steps take two to five times as long. fp32 means fp32, not TF32.

        Raises UsageError if the device has no units for the dtype.
        """
        return self.total / device.rate(self.dtype)


def compute_of(shape: ModelShape, plan: RunPlan) -> Compute:
    """The operations of a step of a resolved plan.

    Norms, activation functions, the softmax and the optimizer are left out: they are not products,
    and bandwidth limits them. Two products are counted that a run may skip: the gradient of the
    first layer's input, not needed if no parameter before it is trained; and the last product of a
    recomputed layer, before which torch's checkpoint stops.
    """
    tokens = plan.tokens * max(1, plan.accumulation)
    pairs = sum(pairs_of(layer, plan) for layer in shape.plain.layers)
    products = [*products_of(shape, plan)]
    # The gradient of the input, and of the weight if it is trained.
    gradients = 1 + (plan.method == "full")
    attention_forward = _PRODUCTS_FORWARD * pairs * max(1, plan.accumulation)
    forward = 2 * tokens * sum(p.parameters + p.adapters for p in products) + attention_forward
    recompute = backward = attention_backward = attention_again = 0
    if plan.trains:
        kept = plan.attention == "eager"
        ratio = _PRODUCTS_BACKWARD_KEPT if kept else _PRODUCTS_BACKWARD
        attention_backward = attention_forward * ratio // _PRODUCTS_FORWARD
        backward = 2 * tokens * sum(gradients * p.parameters + 2 * p.adapters for p in products)
        backward += attention_backward
        if plan.forward_passes > 1:
            attention_again = attention_forward
            again = (p.parameters + p.adapters for p in products if p.index is not None)
            recompute = 2 * tokens * sum(again) + attention_again
    return Compute(
        matrix_parameters=sum(p.parameters for p in products),
        tokens=tokens,
        forward=forward,
        recompute=recompute,
        backward=backward,
        attention=attention_forward + attention_again + attention_backward,
        dtype=plan.autocast_dtype if plan.autocast else plan.dtype or "bf16",
    )


@dataclass(frozen=True)
class WeightProduct:
    """Weights `[outputs, inputs]` that multiply tokens: of a linear layer, a router, or the experts
    of a stack.

    Attributes:
        name: of the module, in full.
        index: of its layer, None outside of layers.
        copies: how many weights share the tokens; `used`: how many of them work on one token.
        rank: of an adapter on it, 0 without.
    """

    name: str
    module: Linear | Parameter
    index: int | None
    inputs: int
    outputs: int
    rank: int = 0
    copies: int = 1
    used: int = 1

    @property
    def parameters(self) -> int:
        """Those that one token uses."""
        return self.used * self.inputs * self.outputs

    @property
    def adapters(self) -> int:
        """Parameters of the adapters that one token uses."""
        return self.used * self.rank * (self.inputs + self.outputs)


def products_of(shape: ModelShape, plan: RunPlan) -> Iterator[WeightProduct]:
    """The products of a model's weights, those of its layers first."""
    shape = shape.plain
    adapters = adapters_of(shape, plan)
    modules: list[tuple[str, Module, int | None]] = [
        (f"{shape.layer_prefix}.{index}.{module.name}", module, index)
        for index, layer in enumerate(shape.layers)
        for module in modules_of_layer(layer)
    ]
    outside = (*shape.embedding_modules, *shape.head_modules, shape.head)
    modules += [(module.name, module, None) for module in outside if module is not None]
    for name, module, index in modules:
        moe = None if index is None else shape.layers[index].mlp
        rank = adapters.rank_on(name, module)
        if isinstance(module, Linear):
            yield WeightProduct(name, module, index, module.inputs, module.outputs, rank)
        elif isinstance(module, Parameter) and isinstance(moe, Moe):
            # A stack of biases `[experts, outputs]` multiplies nothing.
            if module in moe.stacked and len(module.shape) == 3:
                experts, outputs, inputs = module.shape
                yield WeightProduct(name, module, index, inputs, outputs, rank, experts, moe.top_k)
            elif module == moe.router:
                outputs, inputs = module.shape
                yield WeightProduct(name, module, index, inputs, outputs)


def pairs_of(layer: Layer, plan: RunPlan) -> int:
    """Operations of one product over the pairs of positions that a micro batch attends to, averaged
    over scores and values, in one layer.

    Kernels compute half of causal attention, or the window; eager attention computes all of it.
    """
    attention = layer.attention
    sequence = plan.sequence
    if isinstance(attention, LatentAttention):
        width = attention.heads * (attention.nope_dim + attention.rope_dim + attention.value_dim)
        window, causal = None, True
    else:
        width = 2 * attention.heads * attention.head_dim
        window, causal = attention.window, attention.causal
    seen = sequence * sequence
    if plan.attention != "eager":
        if causal:
            seen = sequence * (sequence + 1) // 2
        if window is not None and window < sequence:
            seen = min(seen, sequence * window)
    return plan.batch * seen * width
