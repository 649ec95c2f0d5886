"""Normalizations in the operations of the transformers classes, by `Norm.kind`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from qtui_core.memory.shape.model_shape import Norm
from qtui_core.memory.tape.blocks.weights import Weights
from qtui_core.memory.tape.fused import rms_norm
from qtui_core.memory.tape.kernels import layer_norm
from qtui_core.memory.tape.tensors import EPS, Tensor


def normalize(weights: Weights, spec: Norm | None, x: Tensor) -> Tensor:
    """The norm `spec` of `x`, over its last `spec.size` elements; `x` itself if there is none."""
    if spec is None:
        return x
    tape = x.tape
    before, tape.path = tape.path, spec.name
    weight, kernels = weights.find(f"{spec.name}.weight"), weights.plan.kernels
    if spec.kind == "layer":
        result = layer_norm(x, weight, weights.find(f"{spec.name}.bias"), spec.size)
    elif spec.kind == "rms" and kernels != "torch":
        assert weight is not None
        result = rms_norm(x, weight, spec.size, liger=kernels == "liger")
    else:
        result = NORMS[spec.kind](x, weight, spec.size)
    tape.path = before
    return result


def root_mean_square(
    x: Tensor, weight: Tensor | None, size: int, *, cast_last: bool = False
) -> Tensor:
    """LlamaRMSNorm.forward: in float32, cast back, then times the weight; Olmo2RMSNorm.forward is
    `cast_last`. Its variance and the float32 result keep their names until it returns."""
    given = x.dtype
    x = x.to("fp32")
    variance = x.pow(2).mean(x.elements // size)
    x = x * (variance + EPS).rsqrt()
    if weight is None:
        return x.to(given)
    return (weight * x).to(given) if cast_last else weight * x.to(given)


def one_plus(x: Tensor, weight: Tensor, size: int) -> Tensor:
    """Gemma2RMSNorm.forward: times one plus the weight, in float32, cast back at the end."""
    output = _scaled(size, x.to("fp32"))
    output = output * (1.0 + weight.to("fp32"))
    return output.to(x.dtype)


def weight_last(x: Tensor, weight: Tensor, size: int) -> Tensor:
    """Llama4TextRMSNorm.forward: in float32, cast back, with the weight as second factor."""
    return unit(size, x) * weight


def powered(x: Tensor, weight: Tensor | None, size: int) -> Tensor:
    """Gemma4RMSNorm.forward: all in float32, with a power for the root, cast back at the end."""
    wide = x.to("fp32")
    mean_squared = wide.pow(2).mean(x.elements // size) + EPS
    output = wide * mean_squared.pow(-0.5)
    del wide, mean_squared  # names of _norm, which has returned
    output = output if weight is None else output * weight.to("fp32")
    return output.to(x.dtype)


def unit(size: int, x: Tensor) -> Tensor:
    """Llama4TextL2Norm.forward: in float32, cast back, without a weight."""
    return _scaled(size, x.to("fp32")).to(x.dtype)


def _scaled(size: int, x: Tensor) -> Tensor:
    """`x * rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)`."""
    return x * (x.pow(2).mean(x.elements // size) + EPS).rsqrt()


def layer_plain(x: Tensor, weight: Tensor, size: int) -> Tensor:
    """CohereLayerNorm.forward: in float32 in separate operations, times the weight, then cast
    back."""
    given = x.dtype
    x = x.to("fp32")
    average = x.mean(x.elements // size)
    variance = (x - average).pow(2).mean(x.elements // size)
    x = (x - average) * (variance + EPS).rsqrt()
    x = weight.to("fp32") * x
    return x.to(given)


#: The function of each kind of norm that is no kernel of its own.
NORMS: Final[dict[str, Callable[..., Tensor]]] = {
    "rms": root_mean_square, "rms-cast-last": partial(root_mean_square, cast_last=True),
    "rms-one-plus": one_plus, "rms-weight-last": weight_last, "rms-power": powered,
    "layer-plain": layer_plain,
}  # fmt: skip
