"""How many operations a step takes, and a lower bound on its time.

An operation is a multiplication or an addition. A matrix product takes two for each parameter and
token; its backward pass takes twice as many, half for the gradient of its input and half for that
of its weight. This gives C = 6ND for a full step: N parameters in products, D tokens (Kaplan et al.
2020, arXiv 2001.08361, section 2.1). Frozen weights have no gradient, which gives 4ND; recomputed
layers add 2ND. Attention adds a part that grows with the square of the sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import NamedTuple

from qtui_core.dataclass import dataclass
from qtui_core.memory.devices.device import Device
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.plan.targets import Adapters, adapters_of
from qtui_core.memory.shape.model_shape import (
    Attention,
    LatentAttention,
    Layer,
    Linear,
    ModelShape,
    Module,
    Moe,
    Parameter,
)
from qtui_core.memory.shape.modules import modules_of_layer

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
        trained_parameters: those of N that get a gradient, and the adapters.
        tokens: D, of the step.
        forward, recompute, backward: operations; attention is the part of the three that grows with
            the square of the sequence.
        dtype: in which the products are computed.
    """

    matrix_parameters: int
    trained_parameters: int
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
    shape = shape.plain
    tokens = plan.tokens * max(1, plan.accumulation)
    pairs = sum(pairs_of(layer, plan) for layer in shape.encoder)
    decoding = in_decoder(shape, plan)
    pairs += sum(pairs_of(layer, decoding, plan.sequence) for layer in shape.layers)
    weights = _Multiplied(adapters_of(shape, plan), plan.method == "full")
    layers = [*weights.of_layers(shape, plan.tokens, decoding.tokens)]
    products = [*layers, *weights.outside(shape, decoding.tokens)]
    attention_forward = _PRODUCTS_FORWARD * pairs * max(1, plan.accumulation)
    times = max(1, plan.accumulation)
    forward = 2 * times * sum(p.tokens * (p.parameters + p.adapters) for p in products)
    forward += attention_forward
    recompute = backward = attention_backward = attention_again = 0
    if plan.trains:
        kept = plan.attention == "eager"
        ratio = _PRODUCTS_BACKWARD_KEPT if kept else _PRODUCTS_BACKWARD
        attention_backward = attention_forward * ratio // _PRODUCTS_FORWARD
        backward = (
            2 * tokens * sum((1 + p.trained) * p.parameters + 2 * p.adapters for p in products)
            + attention_backward
        )
        if plan.forward_passes > 1:
            attention_again = attention_forward
            recompute = 2 * tokens * sum(p.parameters + p.adapters for p in layers)
            recompute += attention_again
    return Compute(
        matrix_parameters=sum(p.parameters for p in products),
        trained_parameters=sum(p.trained * p.parameters + p.adapters for p in products),
        tokens=tokens,
        forward=forward,
        recompute=recompute,
        backward=backward,
        attention=attention_forward + attention_again + attention_backward,
        dtype=plan.autocast_dtype if plan.autocast else plan.dtype or "bf16",
    )


@dataclass(frozen=True)
class _Product:
    """A weight that multiplies tokens: its parameters, those of adapters on it, whether it is
    trained, and the tokens of a micro batch."""

    parameters: int
    adapters: int
    trained: bool
    tokens: int


def in_decoder(shape: ModelShape, plan: RunPlan) -> RunPlan:
    """The plan for the layers of a decoder: in an inference with an encoder, the encoder sees the
    prompt and the decoder one token of each sequence, the first."""
    return replace(plan, sequence=1) if shape.encoder and not plan.trains else plan


def of_encoded(layer: Layer, module: Module) -> bool:
    """Whether a module of a decoder works on the encoder's output: keys and values of cross
    attention."""
    cross = layer.cross
    return isinstance(cross, Attention) and module in (cross.key, cross.value)


class _Multiplied(NamedTuple):
    """The products of a model's weights, given its adapters and whether the weights are trained."""

    adapters: Adapters
    trained: bool

    def of_layers(self, shape: ModelShape, tokens: int, decoded: int) -> Iterator[_Product]:
        """The products of layers. Encoder layers see `tokens`, decoder layers `decoded` tokens."""
        for prefix, layers, seen in (
            (shape.encoder_prefix, shape.encoder, tokens),
            (shape.layer_prefix, shape.layers, decoded),
        ):
            for index, layer in enumerate(layers):
                for module in modules_of_layer(layer):
                    given = tokens if of_encoded(layer, module) else seen
                    yield from self._of(f"{prefix}.{index}.{module.name}", module, layer, given)

    def outside(self, shape: ModelShape, tokens: int) -> Iterator[_Product]:
        modules: list[Module] = [*shape.embedding_modules, *shape.head_modules]
        if shape.head is not None:
            modules.append(shape.head)
        for module in modules:
            yield from self._of(module.name, module, None, tokens)

    def _of(
        self, name: str, module: Module, layer: Layer | None, tokens: int
    ) -> Iterator[_Product]:
        """The product of a module: a linear layer, or the experts that one token uses."""
        trained = self.trained
        rank = self.adapters.rank_on(name, module)
        if isinstance(module, Linear):
            adapters = rank * (module.inputs + module.outputs)
            yield _Product(module.inputs * module.outputs, adapters, trained, tokens)
        elif isinstance(module, Parameter) and layer is not None and isinstance(layer.mlp, Moe):
            moe = layer.mlp
            if module in moe.stacked:
                experts, *sizes = module.shape
                # A stack of biases `[experts, outputs]` multiplies nothing.
                if len(sizes) == 2:
                    parameters = prod(sizes) * moe.top_k * experts // moe.experts
                    yield _Product(parameters, rank * sum(sizes) * moe.top_k, trained, tokens)
            elif module == moe.router:
                yield _Product(prod(module.shape), 0, trained, tokens)


def pairs_of(layer: Layer, plan: RunPlan, encoded: int | None = None) -> int:
    """Operations of one product over the pairs of positions that a micro batch attends to, averaged
    over scores and values, in one layer. `encoded` is the number of tokens of each sequence from an
    encoder, if it differs from the layer's.

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
    total = plan.batch * seen * width
    if isinstance(layer.cross, Attention):
        cross = layer.cross
        keys = sequence if encoded is None else encoded
        total += plan.batch * sequence * keys * 2 * cross.heads * cross.head_dim
    return total
