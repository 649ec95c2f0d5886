"""The three products of a linear layer with quantized operands, and the gradient of a model with
some of them. They are emulated: dequantized values are multiplied in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError, UsageError
from qtui_core.lab.numerics.rounding import EXACT, Operand, Random, rotated, rotation
from qtui_core.lab.training.tasks import loss_of
from qtui_core.loading.hooks import hooked

#: The size of the rotation in the published NVFP4 recipe.
_ROTATED: Final = 16


@dataclass(frozen=True)
class Products:
    """How the operands of the three products are quantized.

    Y = X W' sums over inputs, dX = G W over outputs, dW = G' X over tokens. `x` quantizes X in Y
    and `x_dw` in dW, and likewise for W and G. With `turned`, both operands of dW are rotated, with
    the same random signs in every product, as in the published recipe.
    """

    x: Operand = EXACT
    w: Operand = EXACT
    g_dx: Operand = EXACT
    w_dx: Operand = EXACT
    g_dw: Operand = EXACT
    x_dw: Operand = EXACT
    turned: bool = False

    def y(self, x: torch.Tensor, w: torch.Tensor, random: Random = None) -> torch.Tensor:
        """Y float32 `[tokens, outputs]` of x `[tokens, inputs]` and w `[outputs, inputs]`."""
        return self.x(x, random) @ self.w(w, random).T

    def dx(self, g: torch.Tensor, w: torch.Tensor, random: Random = None) -> torch.Tensor:
        """dX float32 `[tokens, inputs]` of g `[tokens, outputs]` and w `[outputs, inputs]`."""
        return self.g_dx(g, random) @ self.w_dx(w.T.contiguous(), random).T

    def dw(self, g: torch.Tensor, x: torch.Tensor, random: Random = None) -> torch.Tensor:
        """dW float32 `[outputs, inputs]` of g `[tokens, outputs]` and x `[tokens, inputs]`."""
        across, along = g.T.contiguous(), x.T.contiguous()
        if self.turned:
            matrix = rotation(_ROTATED, torch.Generator().manual_seed(0)).to(g.device)
            across, along = rotated(across, matrix), rotated(along, matrix)
        return self.g_dw(across, random) @ self.x_dw(along, random).T

    def only(self, *, forward: bool) -> Products:
        """The same products quantized only in the forward pass, or only in the backward pass."""
        if forward:
            return Products(self.x, self.w)
        return replace(self, x=EXACT, w=EXACT)


def alike(operand: Operand, gradient: Operand | None = None) -> Products:
    """The same quantization for all operands; with `gradient`, another one for gradients."""
    g = gradient or operand
    return Products(operand, operand, g, operand, g, operand)


class _Linear(torch.autograd.Function):
    """A linear layer with three quantized products. Gradients are straight-through: the derivative
    of rounding counts as 1."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any, bias: Any, products: Products, random: Random) -> Any:
        ctx.save_for_backward(x, w)
        ctx.products, ctx.random, ctx.biased = products, random, bias is not None
        flat = x.reshape(-1, x.shape[-1])
        y = products.y(flat, w, random).view(*x.shape[:-1], w.shape[0])
        return y if bias is None else y + bias

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        x, w = ctx.saved_tensors
        g = gradient.reshape(-1, gradient.shape[-1])
        flat = x.reshape(-1, x.shape[-1])
        dx = ctx.products.dx(g, w, ctx.random).view(x.shape) if ctx.needs_input_grad[0] else None
        dw = ctx.products.dw(g, flat, ctx.random) if ctx.needs_input_grad[1] else None
        db = g.sum(0) if ctx.biased and ctx.needs_input_grad[2] else None
        return dx, dw, db, None, None


class QuantizedLinear(nn.Module):
    """A linear layer with quantized products, which shares the float32 weight of another linear
    layer. Under autocast the products are the same, but the output has autocast's dtype."""

    def __init__(self, linear: Any, products: Products, random: Random = None) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.products, self.random = products, random

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kind = x.device.type
        autocast = torch.is_autocast_enabled(kind)
        with torch.autocast(kind, enabled=False) if autocast else nullcontext():
            wide = x.float() if autocast else x
            y: torch.Tensor = _Linear.apply(
                wide, self.weight, self.bias, self.products, self.random
            )
        return y.to(torch.get_autocast_dtype(kind)) if autocast else y


def linears(model: nn.Module) -> dict[str, nn.Linear]:
    """Every linear layer by name, including the output head."""
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def inner_linears(model: nn.Module) -> dict[str, nn.Linear]:
    """All linear layers by name, except the output head. Raises ModelError if there are none."""
    inner = {name: module for name, module in linears(model).items() if not is_head(name)}
    if not inner:
        raise ModelError("The model has no linear layers (nn.Linear) besides its head.")
    return inner


def is_head(name: str) -> bool:
    """Whether the layer with this name computes the logits; recipes do not quantize it."""
    return name.rpartition(".")[2] in ("lm_head", "output", "embed_out")


def layer_of(name: str) -> int | None:
    """The number of the block that a parameter or module belongs to: the first in its name."""
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


def emulate(
    model: nn.Module, schemes: Mapping[str, Products], random: Random = None
) -> dict[str, nn.Module]:
    """Gives the linear layers that are named in `schemes` quantized products. Returns the layers
    that were there."""
    kept: dict[str, nn.Module] = {n: one for n, one in linears(model).items() if n in schemes}
    convert(model, {n: QuantizedLinear(one, schemes[n], random) for n, one in kept.items()})
    return kept


def convert(model: nn.Module, modules: Mapping[str, nn.Module]) -> None:
    """Replaces the modules of these names."""
    for name, module in modules.items():
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, module)


#: Schemes by name, as in published recipes. Scales of both operands vary only along axes that are
#: not summed, so that they can be moved out of the sum. "fp8 tensor e5m2" is torchao's tensorwise
#: recipe. Its rowwise recipe is "fp8 row" with scales rounded to powers of two and products to
#: BF16.
SCHEMES: Final[dict[str, Products]] = {
    "fp32": Products(),
    "bf16": alike(Operand("bf16")),
    "int8 row": alike(Operand("int8", "row")),
    "int8 tensor": alike(Operand("int8", "tensor")),
    "int8 tile": alike(Operand("int8", "tile")),
    "int4 row": alike(Operand("int4", "row")),
    "fp8 unscaled": alike(Operand("e4m3"), Operand("e5m2")),
    "fp8 tensor e5m2": alike(Operand("e4m3", "tensor"), Operand("e5m2", "tensor")),
    "fp8 tensor": alike(Operand("e4m3", "tensor")),
    "fp8 row": alike(Operand("e4m3", "row")),
    "fp8 blocks": replace(
        alike(Operand("e4m3", "group")), w=Operand("e4m3", "block"), w_dx=Operand("e4m3", "block")
    ),
    "mxfp8": alike(Operand("e4m3", "mx")),
    "mxfp4": alike(Operand("e2m1", "mx")),
    "nvfp4": alike(Operand("e2m1", "nv")),
    "nvfp4 stochastic": alike(Operand("e2m1", "nv"), Operand("e2m1", "nv", stochastic=True)),
}
#: Parts of the NVFP4 recipe: stochastic rounding of gradients, rotated operands of dW, and weights
#: in tiles of 16 x 16, so that W and its transpose have the same codes.
_TILED: Final = Operand("e2m1", "nv-tile")
SCHEMES["nvfp4 full"] = replace(SCHEMES["nvfp4 stochastic"], w=_TILED, w_dx=_TILED, turned=True)


def gradients_of(model: Any, ids: torch.Tensor, scale: float = 1.0) -> tuple[torch.Tensor, float]:
    """(the gradient over all trainable parameters, float32 `[parameters]`; the loss in nats per
    token) for token ids int64 `[batch, length]`. The loss is multiplied by `scale` and the gradient
    divided by it, as with loss scaling.

    Raises UsageError for a gradient that is not finite, with which nothing can be compared.
    """
    model.zero_grad(set_to_none=True)
    loss = loss_of(model, ids)
    (loss * scale).backward()
    parts = [
        (torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1).float()
        for p in model.parameters()
        if p.requires_grad
    ]
    model.zero_grad(set_to_none=True)
    gradient = torch.cat(parts) / scale
    check_finite(loss, [gradient])
    return gradient, float(loss.detach())


def check_finite(loss: torch.Tensor, gradients: Iterable[torch.Tensor]) -> None:
    """Raises UsageError for gradients that are not finite."""
    if not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
        raise UsageError(
            f"The gradient is not finite at a loss of {float(loss.detach()):.4g}, so nothing can "
            f"be compared with it; look for weights that are not finite."
        )


@contextmanager
def quantized(
    model: nn.Module, schemes: Mapping[str, Products], random: Random = None
) -> Iterator[None]:
    """Within the block, the linear layers named in `schemes` have quantized products."""
    kept = emulate(model, schemes, random)
    try:
        yield
    finally:
        convert(model, kept)


def gradients_seen(
    modules: Mapping[str, nn.Module], tell: Callable[[str, torch.Tensor, torch.Tensor], None]
) -> AbstractContextManager[Any]:
    """Within the block, `tell(name, x, gradient)` is called in each backward pass with the input of
    a module and the gradient of its output."""

    def after(name: str, x: torch.Tensor, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.register_hook(partial(tell, name, x))

    return hooked(modules, after)


def relative(made: torch.Tensor, exact: torch.Tensor) -> float:
    """|made - exact| / |exact| in the Frobenius norm; 0 if both are zero."""
    norm = float(exact.double().norm())
    off = float((made.double() - exact.double()).norm())
    return off / norm if norm else (0.0 if not off else float("inf"))
