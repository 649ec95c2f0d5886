"""What low precision does to the three products of a linear layer, and why each product needs
scales along its own axis; which layers should stay in high precision; and what kernels of this CPU
are worth.

Errors are relative, in the Frobenius norm, to float64. The operands are real activations, weights
and gradients of every linear layer except the output head. Emulated products are never timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, Final

import torch

from qtui_core.dataclass import dataclass
from qtui_core.job import Job
from qtui_core.lab.numerics.products import (
    SCHEMES,
    check_finite,
    gradients_of,
    gradients_seen,
    inner_linears,
    is_head,
    layer_of,
    linears,
    quantized,
    relative,
)
from qtui_core.lab.numerics.rounding import Operand
from qtui_core.lab.results import (
    Cell,
    Findings,
    Heat,
    LabColumn,
    LabFrontier,
    LabPart,
    MatrixProduct,
    Point,
    findings,
)
from qtui_core.lab.training.tasks import TASKS, loss_of, subject_of
from qtui_core.training.measuring.rates import seconds_of

PRODUCTS: Final = ("Y = X W'", "dX = G W", "dW = G' X")
_AXES: Final = (
    MatrixProduct("X", "W'", "tokens", "inputs", "outputs"),
    MatrixProduct("G", "W", "tokens", "outputs", "inputs"),
    MatrixProduct("G'", "X", "outputs", "tokens", "inputs"),
)
#: The last keys are those of the parts that may be missing.
COLUMNS: Final = (
    LabColumn("scheme", "scheme"),
    LabColumn("y", "Y"),
    LabColumn("dx", "dX"),
    LabColumn("dw", "dW"),
    LabColumn("worst", "worst dW"),
    LabColumn("gradient", "whole gradient"),
    LabColumn("speed", "speed over BF16's"),
    LabColumn("low", "at least"),
    LabColumn("high", "at most"),
)
#: Relative errors of Y, dX and dW in one layer.
Errors = tuple[float, float, float]


@dataclass(frozen=True)
class LayerOperands:
    """The operands of a linear layer: x `[tokens, inputs]`, w `[outputs, inputs]`, g `[tokens,
    outputs]`, all float32."""

    x: torch.Tensor
    w: torch.Tensor
    g: torch.Tensor

    def exact(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Y, dX and dW in float64."""
        x, w, g = self.x.double(), self.w.double(), self.g.double()
        return x @ w.T, g @ w, g.T @ x


def jobs(settings: Mapping[str, Any], model: str) -> list[LabPart]:
    """The table, the axis, the layers, and what kernels of this CPU are worth. A job for each
    scheme would be too little work."""
    given = settings["text"], model
    return [
        LabPart("schemes", partial(schemes, *given, settings["schemes"]), Findings, 18),
        LabPart("axis", partial(axis, *given), Findings, 5),
        LabPart("layers", partial(layer_errors, *given, settings["scheme"]), Findings, 15),
        LabPart("kernels", kernels, Findings, 2),
    ]


def conclude(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> Findings:
    """The rows of all parts, their pictures, and which scheme to use."""
    parts = ("schemes", "axis", "layers", "kernels")
    spare = [column.key for column in COLUMNS[5:]]
    return findings(COLUMNS, spare=spare, parts=map(outcomes.get, parts))


def capture(text: str | None, model: str) -> dict[str, LayerOperands]:
    """The operands of one batch by layer, without the output head. Raises
    ModelError for a model without linear layers, UsageError for gradients that are not finite."""
    subject = subject_of(TASKS["prose"], model, text)
    net = subject.fresh(0)
    modules = inner_linears(net)
    operands_of: dict[str, LayerOperands] = {}

    def keep(name: str, x: torch.Tensor, g: torch.Tensor) -> None:
        x, g = (part.detach().reshape(-1, part.shape[-1]) for part in (x, g))
        operands_of[name] = LayerOperands(x, modules[name].weight.detach(), g)

    with gradients_seen(modules, keep):
        loss = loss_of(net, next(subject.batches(0)))
        loss.backward()
    operands = {name: operands_of[name] for name in modules if name in operands_of}
    check_finite(loss, (part.g for part in operands.values()))
    return operands


def schemes(text: str | None, model: str, names: tuple[str, ...], job: Job) -> Findings:
    """The median over the layers of each scheme's errors, and which one of 8 bits is best."""
    by_scheme = _by_scheme(names, list(capture(text, model).values()), job)
    medians = {name: _medians(errors) for name, errors in by_scheme.items()}
    picture = Heat(
        "relative error of each product, median of layers",
        tuple(medians),
        PRODUCTS,
        tuple(medians.values()),
        "relative error",
        log=True,
        scale_axes=tuple(map(_scale_axes, medians)),
        products=_AXES,
    )
    rows = [_row(name, errors) for name, errors in by_scheme.items()]
    return findings((), rows, [picture], [best_of({name: at[2] for name, at in medians.items()})])


def _by_scheme(
    names: Sequence[str], operands: list[LayerOperands], job: Job
) -> dict[str, list[Errors]]:
    exact = [part.exact() for part in operands]
    by_scheme: dict[str, list[Errors]] = {}
    for number, name in enumerate(names):
        job.at(number, len(names))
        random = torch.Generator().manual_seed(0)
        by_scheme[name] = []
        for part, right in zip(operands, exact, strict=True):
            y = SCHEMES[name].y(part.x, part.w, random)
            dx = SCHEMES[name].dx(part.g, part.w, random)
            dw = SCHEMES[name].dw(part.g, part.x, random)
            off = map(relative, (y, dx, dw), right)
            by_scheme[name].append((next(off), next(off), next(off)))
    return by_scheme


def _medians(errors: Iterable[Errors]) -> Errors:
    y, dx, dw = (median(column) for column in zip(*errors, strict=True))
    return y, dx, dw


def _row(name: str, errors: list[Errors]) -> dict[str, Cell]:
    y, dx, dw = _medians(errors)
    return {"scheme": name, "y": y, "dx": dx, "dw": dw, "worst": max(e[2] for e in errors)}


def _scale_axes(name: str) -> Mapping[str, tuple[str, ...]] | None:
    """Along which axes scales differ where each operand is stored once: a row of X and of G is a
    token, a row of W an output. Tiles and blocks cut both axes."""
    scales = SCHEMES[name].x.scales
    if scales == "none":
        return None
    cut = {"tensor": 0, "row": 1}.get(scales, 2)
    axes = {"X": ("tokens", "inputs"), "W": ("outputs", "inputs"), "G": ("tokens", "outputs")}
    return {matrix: along[:cut] for matrix, along in axes.items()}


def best_of(dw: Mapping[str, float]) -> str:
    """Which scheme of 8 bits keeps dW best, and which format gradients have with a scale."""
    eight = {n: e for n, e in dw.items() if n.startswith(("int8", "fp8", "mxfp8"))}
    if eight and not any(eight.values()):
        return "Every dW is exact here, so it cannot choose between formats of 8 bits."
    said = []
    if eight:
        best = min(eight, key=eight.__getitem__)
        said.append(f"Of 8 bits {best} keeps dW best here ({eight[best]:.2%} off)")
    e4, e5 = dw.get("fp8 tensor"), dw.get("fp8 tensor e5m2")
    if e4 and e5 and f"{max(e4, e5) / min(e4, e5):.1f}" != "1.0":
        better, worse = ("E4M3", "E5M2") if e4 < e5 else ("E5M2", "E4M3")
        ratio = max(e4, e5) / min(e4, e5)
        said.append(f"with a scale, {better} gradients are {ratio:.1f} times nearer than {worse}")
    return f"{'; '.join(said)}." if said else ""


def axis(text: str | None, model: str, job: Job) -> Findings:
    """The errors of dX if an int8 weight is stored with a scale for each row, which is the axis
    that dX sums over; and the errors of the remedies. Only dX is measured."""
    operands = capture(text, model)
    row = Operand("int8", "row")
    errors: dict[str, list[float]] = {}
    for number, part in enumerate(operands.values()):
        job.at(number, len(operands))
        _, exact, _ = part.exact()
        scale = part.w.abs().amax(dim=1, keepdim=True) / 127
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        codes = (part.w / scale).round()
        whole = Operand("int8", "tensor")(part.w)
        ways = {
            "exact G": part.g @ (codes * scale),
            "folded into G": row(part.g * scale.T) @ codes,
            "requantized": row(part.g) @ row((codes * scale).T.contiguous()).T,
            "one scale": row(part.g) @ whole,
            "mean of scales": (row(part.g) @ codes) * scale.mean(),
        }
        for way, made in ways.items():
            errors.setdefault(way, []).append(relative(made, exact))
    dx = {way: median(of_layers) for way, of_layers in errors.items()}
    rows = [{"scheme": f"int8 weight by rows: {way}", "dx": off} for way, off in dx.items()]
    return findings((), rows, said=[remedy_of(dx)])


def remedy_of(dx: Mapping[str, float]) -> str:
    """What to do with a weight that is stored by rows."""
    folded, again = dx["folded into G"], dx["requantized"]
    serves, other = "if its scales are folded into G", "requantized"
    if again < folded:
        serves, other = "if it is requantized along the other axis", "its scales folded into G"
    return (
        f"A weight stored by rows serves dX too {serves} ({min(folded, again):.2%}; {other} "
        f"{max(folded, again):.2%}; taken out of the sum as their mean "
        f"{dx['mean of scales']:.0%})."
    )


#: The recommended choice of layers reduces the error to this share of that with all layers
#: quantized.
_GOAL: Final = 2 / 3
#: The layers' errors add up if they are within this share of the error of all at once.
_ADDS_UP: Final = 0.1


def layer_errors(text: str | None, model: str, scheme: str, job: Job) -> Findings:
    """The errors of one scheme, the head included: a row for each layer, the worst first; the
    frontier with the published rules beside it; and which layers to leave.

    e_l = |g_q(l) - g| / |g| over all parameters, where only the three products of linear layer l
    are quantized. The squares nearly add up, so leaving a set of layers unquantized saves about the
    sum of its e_l²: a knapsack problem in which a layer costs its parameters.
    """
    subject = subject_of(TASKS["prose"], model, text)
    net = subject.start()
    sizes = {name: module.weight.numel() for name, module in linears(net).items()}
    batch = next(subject.batches(0))
    exact, _ = gradients_of(net, batch)
    errors: dict[str, float] = {}

    def error(names: Collection[str]) -> float:
        job.at(len(errors), len(sizes) + 5)
        random = torch.Generator().manual_seed(0)
        with quantized(net, dict.fromkeys(names, SCHEMES[scheme]), random):
            made, _ = gradients_of(net, batch)
        return relative(made, exact)

    def without(left: Collection[str]) -> tuple[float, float]:
        """(The share of the weights in these layers, the error that remains without them.)"""
        share = sum(sizes[name] for name in left) / sum(sizes.values())
        return share, error(sizes.keys() - left)

    for name in sizes:
        errors[name] = error([name])
    rules = {rule: without(left) for rule, left in _rules(list(sizes)).items()}
    line, order = frontier(errors, sizes)
    rows = [
        {"scheme": f"{scheme} in {name} alone", "gradient": off}
        for name, off in sorted(errors.items(), key=lambda one: -one[1])
    ]
    picture = LabFrontier(
        f"error of the gradient under {scheme}, against what is left out",
        "share of the weights in high precision",
        "relative error",
        tuple(line),
        tuple(Point(rule, *place) for rule, place in rules.items()),
    )
    left = recommended(line, order)
    said = _sentence(scheme, error(sizes), line[0][1], left, without(left))
    return findings((), rows, [picture], notes=[said])


def _rules(names: Sequence[str]) -> dict[str, set[str]]:
    """The layers that published rules leave in high precision, by the name of the rule."""
    head = {name for name in names if is_head(name)}
    numbers = [n for name in names if (n := layer_of(name)) is not None]
    rules = {"the head": head}
    for which, end in (("first", min), ("last", max)) if numbers else ():
        block = {name for name in names if layer_of(name) == end(numbers)}
        rules[f"head and {which} block"] = head | block
    return {rule: left for rule, left in rules.items() if left}


def frontier(
    errors: Mapping[str, float], sizes: Mapping[str, int]
) -> tuple[list[tuple[float, float]], list[str]]:
    """The points (share of the weights in high precision, error that remains) if the layers are
    left unquantized one after the other, and the layers in that order: those that remove most error
    per weight come first."""
    order = sorted(errors, key=lambda name: -(errors[name] ** 2) / max(1, sizes[name]))
    left, squares = 0, sum(e * e for e in errors.values())
    line = [(0.0, math.sqrt(squares))]
    for name in order:
        left += sizes[name]
        squares -= errors[name] ** 2
        line.append((left / sum(sizes.values()), math.sqrt(max(0.0, squares))))
    return line, order


def recommended(line: Sequence[tuple[float, float]], order: Sequence[str]) -> Sequence[str]:
    """The fewest layers of a frontier that reduce the error to _GOAL of it."""
    return order[
        : next((i for i, (_, e) in enumerate(line) if e <= _GOAL * line[0][1]), len(order))
    ]


def _sentence(
    scheme: str, whole: float, summed: float, left: Sequence[str], place: tuple[float, float]
) -> str:
    if not whole:
        return f"{scheme} changes no gradient here, so every layer can be quantized."
    if abs(summed / whole - 1) > _ADDS_UP:
        return (
            f"Under {scheme} the layers' errors do not add up here ({summed:.3g} against "
            f"{whole:.3g} all at once), so this run cannot say which to leave."
        )
    names = ", ".join(left) if len(left) <= 3 else f"{len(left)} layers ({left[0]} first)"
    return (
        f"Under {scheme} the gradient is {whole:.2%} off; with {names} in high precision "
        f"({place[0]:.1%} of the weights) it is {place[1]:.2%}."
    )


#: Tokens, inputs and outputs of the timed product, and how often it is timed.
_SHAPE: Final = (512, 1024, 1024)
_TIMES: Final = 7
#: The largest allowed relative error of kernels with BF16 output.
_BF16: Final = 2.0**-7
_TIMED: Final = (
    "Errors are of emulated products, which are not timed. A speed is that of a kernel of this CPU "
    "on a product alone, without the rounding before it: the best of seven, and the least and the "
    "most of seven pairs, which a busy machine drives apart."
)
#: A call of the kernel, and the product that is due, float64.
Kernel = tuple[Callable[[], torch.Tensor], torch.Tensor]


def kernels(job: Job) -> Findings:
    """A row for each kernel that runs and is right, with its speed over that of BF16, the product
    alone: the best of seven over the best of seven, timed in turn. `low` and `high` are those of
    two products timed one after the other, which are far apart on a busy machine."""
    tokens, inputs, outputs = _SHAPE
    random = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, inputs, generator=random) for n in (tokens, outputs))
    plain = partial(torch.matmul, x.bfloat16(), w.bfloat16().T)
    rows: list[dict[str, Cell]] = []
    faults = []
    for number, (name, (make, bound)) in enumerate(_KERNELS.items()):
        job.at(number, len(_KERNELS))
        try:
            run, exact = make(x, w)
            off = relative(run(), exact)
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            faults.append(f"{name} does not run here: {first}.")
            continue
        if not off <= bound:
            faults.append(f"{name} is wrong here: its product is {off:.2g} off.")
            continue
        pairs = [(seconds_of(plain), seconds_of(run)) for _ in range(_TIMES + 1)][1:]  # warm by one
        ratios = [one / other for one, other in pairs]
        best, own = map(min, zip(*pairs, strict=True))
        speeds = {"speed": best / own, "low": min(ratios), "high": max(ratios)}
        rows.append({"scheme": name, **speeds})
    return findings((), rows, notes=[*faults, _TIMED])


def _scaled(a: torch.Tensor, b: torch.Tensor, one: Any, other: Any, times: Any) -> Kernel:
    """torch's product of `[tokens, inputs]` and `[outputs, inputs]` with scales; `times` is what
    the product of the codes is multiplied by."""
    run = partial(torch._scaled_mm, a, b.T, one, other, out_dtype=torch.bfloat16)
    return run, a.double() @ b.double().T * times


def _integers(x: torch.Tensor, w: torch.Tensor) -> Kernel:
    a, b = ((m * (127 / m.abs().amax(1, keepdim=True))).round().to(torch.int8) for m in (x, w))
    return partial(torch._int_mm, a, b.T), a.double() @ b.double().T


def _rows(x: torch.Tensor, w: torch.Tensor) -> Kernel:
    ratios = [448 / m.abs().amax(1, keepdim=True) for m in (x, w)]
    a, b = ((m * r).to(torch.float8_e4m3fn) for m, r in zip((x, w), ratios, strict=True))
    one, other = (1 / r for r in ratios)
    return _scaled(a, b, one, other.T, one.double() * other.T)


def _tensors(x: torch.Tensor, w: torch.Tensor) -> Kernel:
    """dX, with the gradient in E5M2 and the weight in E4M3."""
    scale = x.abs().amax() / 57344
    a, b = (x / scale).to(torch.float8_e5m2), w.to(torch.float8_e4m3fn)
    return _scaled(a, b, scale, torch.ones(()), scale)


def _blocks(x: torch.Tensor, w: torch.Tensor) -> Kernel:
    """MXFP8: a scale for 32 numbers, all of them 1."""
    ones = [torch.ones(len(m), m.shape[1] // 32).to(torch.float8_e8m0fnu) for m in (x, w)]
    return _scaled(x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn), ones[0], ones[1], 1)


#: Kernels, and the largest relative error of their products.
_KERNELS: Final[dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], Kernel], float]]] = {
    "torch._int_mm, int8 by rows": (_integers, 0.0),
    "torch._scaled_mm, E4M3 by rows": (_rows, _BF16),
    "torch._scaled_mm, E5M2 and E4M3 by tensors": (_tensors, _BF16),
    "torch._scaled_mm, MXFP8": (_blocks, _BF16),
}
