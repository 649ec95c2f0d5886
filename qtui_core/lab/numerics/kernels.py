"""PyTorch's kernels for products in few bits on this CPU: whether they are correct, and how fast
they are compared with BF16. Emulated products are never timed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch

from qtui_core.lab.numerics.products import relative
from qtui_core.lab.results import Cell, Findings, See, findings
from qtui_core.training.measuring.rates import seconds_of

#: Tokens, inputs and outputs of the timed product, and how often it is timed.
_SHAPE: Final = (512, 1024, 1024)
_TIMES: Final = 7
#: The largest allowed relative error of kernels with BF16 output.
_BF16: Final = 2.0**-7
#: Elements of a block of MX.
_BLOCK: Final = 32
_TIMED: Final = (
    "Errors are of emulated products, which are not timed. A speed is that of a kernel of this CPU "
    "on a product alone, without the rounding before it: the best of seven, and the least and the "
    "most of seven pairs, which a busy machine drives apart."
)
#: Codes `[tokens, inputs]` and `[outputs, inputs]`, the scales that the kernel takes, and what the
#: product of the codes is multiplied by.
Operands = tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...], Any]


def kernels(see: See) -> Findings:
    """A row for each kernel that runs and is right, with its speed over that of BF16, the product
    alone: the best of seven over the best of seven, timed in turn. `low` and `high` are those of
    two products timed one after the other, which are far apart on a busy machine."""
    tokens, inputs, outputs = _SHAPE
    random = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, inputs, generator=random) for n in (tokens, outputs))
    rows: list[dict[str, Cell]] = []
    faults = []
    for number, name in enumerate(_KERNELS):
        see(number, len(_KERNELS), None)
        try:
            rows.append({"scheme": name, **_timed(name, x, w)})
        except _WrongProduct as error:
            faults.append(f"{name} is wrong here: its product is {error} off.")
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            faults.append(f"{name} does not run here: {first}.")
    return findings((), rows, notes=[*faults, _TIMED])


class _WrongProduct(Exception):
    """The product of a kernel is off by this."""


def _timed(name: str, x: torch.Tensor, w: torch.Tensor) -> dict[str, Cell]:
    make, bound = _KERNELS[name]
    a, b, scales, times = make(x, w)
    run: Callable[[], torch.Tensor] = partial(torch._int_mm, a, b.T)
    if scales:
        run = partial(torch._scaled_mm, a, b.T, scales[0], scales[1], out_dtype=torch.bfloat16)
    off = relative(run(), a.double() @ b.double().T * times)
    if not off <= bound:
        raise _WrongProduct(f"{off:.2g}")
    plain = partial(torch.matmul, x.bfloat16(), w.bfloat16().T)
    pairs = [(seconds_of(plain), seconds_of(run)) for _ in range(_TIMES + 1)][1:]  # one to warm up
    ratios = [one / other for one, other in pairs]
    best, own = map(min, zip(*pairs, strict=True))
    return {"speed": best / own, "low": min(ratios), "high": max(ratios)}


def _integers(x: torch.Tensor, w: torch.Tensor) -> Operands:
    a, b = ((m * (127 / m.abs().amax(1, keepdim=True))).round().to(torch.int8) for m in (x, w))
    return a, b, (), 1


def _rows(x: torch.Tensor, w: torch.Tensor) -> Operands:
    ratios = [448 / m.abs().amax(1, keepdim=True) for m in (x, w)]
    a, b = ((m * r).to(torch.float8_e4m3fn) for m, r in zip((x, w), ratios, strict=True))
    one, other = (1 / r for r in ratios)
    return a, b, (one, other.T), one.double() * other.T


def _tensors(x: torch.Tensor, w: torch.Tensor) -> Operands:
    """dX, with the gradient in E5M2 and the weight in E4M3."""
    scale = x.abs().amax() / 57344
    return (
        (x / scale).to(torch.float8_e5m2),
        w.to(torch.float8_e4m3fn),
        (scale, torch.ones(())),
        scale,
    )


def _blocks(x: torch.Tensor, w: torch.Tensor) -> Operands:
    """MXFP8, with all scales 1."""
    ones = [torch.ones(len(m), m.shape[1] // _BLOCK).to(torch.float8_e8m0fnu) for m in (x, w)]
    return x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn), tuple(ones), 1


#: Kernels, and the largest relative error of their products.
_KERNELS: Final[dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], Operands], float]]] = {
    "torch._int_mm, int8 by rows": (_integers, 0.0),
    "torch._scaled_mm, E4M3 by rows": (_rows, _BF16),
    "torch._scaled_mm, E5M2 and E4M3 by tensors": (_tensors, _BF16),
    "torch._scaled_mm, MXFP8": (_blocks, _BF16),
}
