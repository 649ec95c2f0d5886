"""PyTorch's kernels for products in few bits on this CPU: whether they are correct, and how fast
they are compared with BF16. Emulated products are never timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import torch

from qtui_core.dataclass import dataclass
from qtui_core.lab.job import See

#: Tokens, inputs and outputs of the timed product, and how often it is timed.
_SHAPE: Final = (512, 1024, 1024)
_TIMES: Final = 7
#: The largest allowed relative error of kernels with BF16 output.
_BF16: Final = 2.0**-7
#: Elements of a block of MX.
_BLOCK: Final = 32
Product = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class KernelSpeed:
    """A kernel on one product.

    Attributes:
        kernel: PyTorch's name, and its operands.
        speed: relative to BF16, the product alone: the best of seven over the best of seven, timed
            in turn; None if the kernel does not run or is wrong.
        fault: why there is no speed, as a sentence; else empty.
        low, high: the same of two products that were timed one after the other, at its least and
            at its most: far apart on a busy machine.
    """

    kernel: str
    speed: float | None
    fault: str = ""
    low: float | None = None
    high: float | None = None


def kernels(see: See) -> tuple[KernelSpeed, ...]:
    """Times each kernel on a product of random codes, with scales per row and column or per
    tensor."""
    tokens, inputs, outputs = _SHAPE
    random = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, inputs, generator=random) for n in (tokens, outputs))
    a, b = x.bfloat16(), w.bfloat16().T
    found = []
    for number, (name, (make, bound)) in enumerate(_KERNELS.items()):
        see(number, len(_KERNELS), None)
        found.append(_measured(name, make, bound, x, w, lambda: a @ b))
    return tuple(found)


def _measured(
    name: str, make: _Make, bound: float, x: torch.Tensor, w: torch.Tensor, plain: Product
) -> KernelSpeed:
    try:
        run, exact = make(x, w)
        off = float((run().double() - exact).norm() / exact.norm())
        if not off <= bound:
            return KernelSpeed(name, None, f"{name} is wrong here: its product is {off:.2g} off.")
        pairs = [(_seconds(plain), _seconds(run)) for _ in range(_TIMES + 1)][1:]  # one to warm up
        ratios = [one / other for one, other in pairs]
        best, own = map(min, zip(*pairs, strict=True))
        return KernelSpeed(name, best / own, "", min(ratios), max(ratios))
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        return KernelSpeed(name, None, f"{name} does not run here: {first}.")


def _seconds(run: Product) -> float:
    began = time.perf_counter()
    run()
    return max(time.perf_counter() - began, 1e-9)


def _integers(x: torch.Tensor, w: torch.Tensor) -> tuple[Product, torch.Tensor]:
    a, b = ((m * (127 / m.abs().amax(1, keepdim=True))).round().to(torch.int8) for m in (x, w))
    return lambda: torch._int_mm(a, b.T), a.double() @ b.double().T


def _rows(x: torch.Tensor, w: torch.Tensor) -> tuple[Product, torch.Tensor]:
    ratios = [448 / m.abs().amax(1, keepdim=True) for m in (x, w)]
    a, b = ((m * r).to(torch.float8_e4m3fn) for m, r in zip((x, w), ratios, strict=True))
    one, other = (1 / r for r in ratios)
    exact = (a.double() * one) @ (b.double() * other).T
    return lambda: torch._scaled_mm(a, b.T, one, other.T, out_dtype=torch.bfloat16), exact


def _tensors(x: torch.Tensor, w: torch.Tensor) -> tuple[Product, torch.Tensor]:
    """dX, with the gradient in E5M2 and the weight in E4M3."""
    a, b = (x * (57344 / x.abs().amax())).to(torch.float8_e5m2), w.to(torch.float8_e4m3fn)
    scale, one = x.abs().amax() / 57344, torch.ones(())
    exact = a.double() * scale @ b.double().T
    return lambda: torch._scaled_mm(a, b.T, scale, one, out_dtype=torch.bfloat16), exact


def _blocks(x: torch.Tensor, w: torch.Tensor) -> tuple[Product, torch.Tensor]:
    """MXFP8, with all scales 1."""
    a, b = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn)
    one, other = (
        torch.ones(m.shape[0], m.shape[1] // _BLOCK).to(torch.float8_e8m0fnu) for m in (x, w)
    )
    exact = a.double() @ b.double().T
    return lambda: torch._scaled_mm(a, b.T, one, other, out_dtype=torch.bfloat16), exact


_Make = Callable[[torch.Tensor, torch.Tensor], tuple[Product, torch.Tensor]]
#: Kernels, and the largest relative error of their products.
_KERNELS: Final[dict[str, tuple[_Make, float]]] = {
    "torch._int_mm, int8 by rows": (_integers, 0.0),
    "torch._scaled_mm, E4M3 by rows": (_rows, _BF16),
    "torch._scaled_mm, E5M2 and E4M3 by tensors": (_tensors, _BF16),
    "torch._scaled_mm, MXFP8": (_blocks, _BF16),
}
