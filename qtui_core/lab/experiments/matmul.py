"""What low precision does to the three products of a linear layer, and why each product needs
scales along its own axis.

Errors are relative, in the Frobenius norm, to float64. The operands are real activations, weights
and gradients of every linear layer except the output head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from statistics import fmean, median
from typing import Any, Final

import torch

from qtui_core.dataclass import dataclass
from qtui_core.lab.job import Job, See
from qtui_core.lab.numerics.gradients import check_finite, gradients_seen, relative
from qtui_core.lab.numerics.kernels import KernelSpeed, kernels
from qtui_core.lab.numerics.layer_errors import (
    LabLayerErrors,
    layer_errors,
    layers_frontier,
    layers_sentence,
)
from qtui_core.lab.numerics.products import (
    NVFP4_PARTS,
    SCHEMES,
    Products,
    inner_linears,
    layer_of,
)
from qtui_core.lab.numerics.rounding import EXACT, Operand
from qtui_core.lab.results import Cell, Findings, Heat, LabColumn, MatrixProduct, Picture
from qtui_core.lab.training.tasks import TASKS, loss_of, subject_of

PRODUCTS: Final = ("Y = X W'", "dX = G W", "dW = G' X")
_AXES: Final = (
    MatrixProduct("X", "W'", "tokens", "inputs", "outputs"),
    MatrixProduct("G", "W", "tokens", "outputs", "inputs"),
    MatrixProduct("G'", "X", "outputs", "tokens", "inputs"),
)
_AXIS: Final = ("exact G", "folded into G", "requantized", "one scale", "mean of scales")
#: The number of products in a mean.
DRAWS: Final = 64
_OUTLIER: Final = 100.0
_OUTLIERS: Final = ("int8 tensor", "int8 row", "int8 tile", "fp8 tensor")


@dataclass(frozen=True)
class ProductErrors:
    """Relative errors of Y, dX and dW by scheme, one row for each layer."""

    layers: tuple[str, ...]
    errors: Mapping[str, tuple[tuple[float, float, float], ...]]


@dataclass(frozen=True)
class LabParts:
    """Relative errors of dW of one layer by parts of the NVFP4 recipe: of one product, of the mean
    of DRAWS, and both with the gradient alone quantized."""

    layer: str
    errors: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class LayerOperands:
    """The operands of a linear layer: x `[tokens, inputs]`, w `[outputs, inputs]`, g `[tokens,
    outputs]`, all float32."""

    x: torch.Tensor
    w: torch.Tensor
    g: torch.Tensor


def jobs(settings: Mapping[str, Any], model: str) -> list[Job]:
    """The table, the axis, the outliers, and what kernels of this CPU are worth. A job for each
    scheme would be too little work."""
    asked = settings["text"], model
    return [
        Job("schemes", partial(schemes, *asked, settings["schemes"]), ProductErrors, 18),
        Job("axis", partial(axis, *asked), ProductErrors, 5),
        Job("outliers", partial(outliers, *asked), ProductErrors, 5),
        Job("means", partial(means, *asked), LabParts, 5),
        Job("layers", partial(layer_errors, *asked, settings["scheme"]), LabLayerErrors, 15),
        Job("kernels", kernels, tuple[KernelSpeed, ...], 2),
    ]


def capture(text: str | None, model: str, only: str | None = None) -> dict[str, LayerOperands]:
    """The operands of one batch by layer, without the output head, or of the layer `only`. Raises
    ModelError for a model without linear layers, UsageError for gradients that are not finite."""
    subject = subject_of(TASKS["prose"], model, text)
    net = subject.fresh(0)
    modules = {
        name: net.get_submodule(name) for name in (inner_linears(net) if only is None else (only,))
    }
    found: dict[str, LayerOperands] = {}

    def keep(name: str, x: torch.Tensor, g: torch.Tensor) -> None:
        flat = (part.detach().reshape(-1, part.shape[-1]) for part in (x, g))
        x, g = flat
        found[name] = LayerOperands(x, modules[name].weight.detach(), g)

    with gradients_seen(modules, keep):
        loss = loss_of(net, next(subject.batches(0)))
        loss.backward()
    operands = {name: found[name] for name in modules if name in found}
    check_finite(loss, (part.g for part in operands.values()))
    return operands


def schemes(text: str | None, model: str, names: tuple[str, ...], see: See) -> ProductErrors:
    """The errors of each scheme in every layer."""
    operands = capture(text, model)
    exact = {name: _exact(part) for name, part in operands.items()}
    found = {}
    for number, name in enumerate(names):
        see(number, len(names), None)
        random = torch.Generator().manual_seed(0)
        found[name] = tuple(
            _errors(SCHEMES[name], part, exact[layer], random) for layer, part in operands.items()
        )
    return ProductErrors(tuple(operands), found)


def _exact(part: LayerOperands) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, w, g = part.x.double(), part.w.double(), part.g.double()
    return x @ w.T, g @ w, g.T @ x


def _errors(
    products: Products,
    part: LayerOperands,
    exact: tuple[torch.Tensor, ...],
    random: torch.Generator,
) -> tuple[float, float, float]:
    made = (
        products.y(part.x, part.w, random),
        products.dx(part.g, part.w, random),
        products.dw(part.g, part.x, random),
    )
    y, dx, dw = (relative(a, b) for a, b in zip(made, exact, strict=True))
    return y, dx, dw


def means(text: str | None, model: str, see: See) -> LabParts:
    """dW of the last layer of the middle block with parts of the NVFP4 recipe: one product, and the
    mean of DRAWS of them, with both operands quantized and with the gradient alone."""
    names = inner_linears(subject_of(TASKS["prose"], model, text).start())
    numbers = sorted({n for name in names if (n := layer_of(name)) is not None})
    middle = numbers[len(numbers) // 2] if numbers else None
    layer = [name for name in names if layer_of(name) == middle][-1]
    part = capture(text, model, only=layer)[layer]
    exact = part.g.double().T @ part.x.double()
    errors = {}
    for number, (name, kind) in enumerate(NVFP4_PARTS.items()):
        see(number, len(NVFP4_PARTS), None)
        random = torch.Generator().manual_seed(0)
        errors[name] = tuple(
            error
            for products in (kind, replace(kind, x_dw=EXACT))
            for error in _one_and_mean(partial(products.dw, part.g, part.x, random), exact)
        )
    return LabParts(layer, errors)


def _one_and_mean(make: Callable[[], torch.Tensor], exact: torch.Tensor) -> tuple[float, float]:
    total, ones = torch.zeros_like(exact), []
    for _ in range(DRAWS):
        made = make().double()
        total += made
        ones.append(relative(made, exact))
    return fmean(ones), relative(total / DRAWS, exact)


def axis(text: str | None, model: str, see: See) -> ProductErrors:
    """The errors of dX if an int8 weight is stored with a scale for each row, which is the axis
    that dX sums over; and the errors of the remedies. Only dX is measured."""
    operands = capture(text, model)
    row = Operand("int8", "row")
    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in _AXIS}
    for number, part in enumerate(operands.values()):
        see(number, len(operands), None)
        _, exact, _ = _exact(part)
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
            found[way].append((0.0, relative(made, exact), 0.0))
    return ProductErrors(tuple(operands), {way: tuple(rows) for way, rows in found.items()})


def outliers(text: str | None, model: str, see: See) -> ProductErrors:
    """The errors of each scheme if one channel of X is a hundred times larger."""
    operands = {
        name: LayerOperands(_with_outlier(part.x), part.w, part.g)
        for name, part in capture(text, model).items()
    }
    found = {}
    for number, name in enumerate(_OUTLIERS):
        see(number, len(_OUTLIERS), None)
        random = torch.Generator().manual_seed(0)
        found[name] = tuple(
            _errors(SCHEMES[name], part, _exact(part), random) for part in operands.values()
        )
    return ProductErrors(tuple(operands), found)


def _with_outlier(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[:, 0] *= _OUTLIER
    return x


def conclude(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> Findings:
    """The median and the worst error over the layers, the rows of the heat map, and which scheme to
    use."""
    columns: tuple[LabColumn, ...] = (
        LabColumn("scheme", "scheme"),
        LabColumn("y", "Y"),
        LabColumn("dx", "dX"),
        LabColumn("dw", "dW"),
        LabColumn("worst", "worst dW"),
    )
    rows: list[dict[str, Cell]] = []
    pictures: list[Picture] = []
    table: ProductErrors | None = outcomes.get("schemes")
    if table is not None:
        medians = {name: _medians(errors) for name, errors in table.errors.items()}
        rows += [_row(name, table.errors[name]) for name in medians]
        pictures.append(
            Heat(
                "relative error of each product, median of layers",
                tuple(medians),
                PRODUCTS,
                tuple(medians.values()),
                "relative error",
                log=True,
                scale_axes=tuple(_scale_axes(name) for name in medians),
                products=_AXES,
            )
        )
    if (ways := outcomes.get("axis")) is not None:
        for way, errors in ways.errors.items():
            rows.append({"scheme": f"int8 weight by rows: {way}", "dx": _medians(errors)[1]})
    if (spoilt := outcomes.get("outliers")) is not None:
        for name, errors in spoilt.errors.items():
            rows.append(_row(f"{name}, one channel of X x100", errors))
    notes = []
    if (drawn := outcomes.get("means")) is not None:
        columns = (*columns, LabColumn("mean", f"dW, mean of {DRAWS}"))
        for name, (one, mean, g_one, g_mean) in drawn.errors.items():
            rows.append({"scheme": f"{name}, {drawn.layer}", "dw": one, "mean": mean})
            rows.append({"scheme": f"{name}, G alone", "dw": g_one, "mean": g_mean})
        notes.append(_of_means(drawn))
    layers: LabLayerErrors | None = outcomes.get("layers")
    if layers is not None:
        columns = (*columns, LabColumn("gradient", "whole gradient"))
        named = zip(layers.names, layers.errors, strict=True)
        rows += [
            {"scheme": f"{settings['scheme']} in {name} alone", "gradient": error}
            for name, error in sorted(named, key=lambda one: -one[1])
        ]
        pictures.append(layers_frontier(layers, settings["scheme"]))
        notes.append(layers_sentence(layers, settings["scheme"]))
    timed: tuple[KernelSpeed, ...] = outcomes.get("kernels", ())
    rows += [
        {"scheme": one.kernel, "speed": one.speed, "low": one.low, "high": one.high}
        for one in timed
        if one.speed is not None
    ]
    if any(one.speed is not None for one in timed):
        names = {"speed": "speed over BF16's", "low": "at least", "high": "at most"}
        columns = (*columns, *(LabColumn(key, title) for key, title in names.items()))
    notes += [one.fault for one in timed if one.fault]
    if timed:
        notes.append(
            "Errors are of emulated products, which are not timed. A speed is that of a kernel of "
            "this CPU on a product alone, without the rounding before it: the best of seven, and "
            "the least and the most of seven pairs, which a busy machine drives apart."
        )
    verdict = _verdict(table, ways)
    return Findings(columns, tuple(rows), tuple(pictures), verdict, notes=tuple(notes))


def _of_means(found: LabParts) -> str:
    """What stochastic rounding does to one product and to the mean of many."""
    one, _, _, plain = found.errors["nvfp4"]
    if not one:
        return f"NVFP4 changes no product of {found.layer} here."
    drawn, _, _, mean = found.errors["nvfp4 stochastic"]
    return (
        f"In {found.layer} one dW in NVFP4 is {one:.3f} off, {drawn:.3f} rounded stochastically; "
        f"with G alone rounded the mean of {DRAWS} is {plain:.3f} off, stochastically {mean:.3f}."
    )


def _medians(errors: tuple[tuple[float, float, float], ...]) -> tuple[float, ...]:
    return tuple(median(column) for column in zip(*errors, strict=True))


def _row(name: str, errors: tuple[tuple[float, float, float], ...]) -> dict[str, Cell]:
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
    return {matrix: each[:cut] for matrix, each in axes.items()}


def _verdict(table: ProductErrors | None, ways: ProductErrors | None) -> str:
    if table is None:
        return ""
    dw = {name: _medians(errors)[2] for name, errors in table.errors.items()}
    eight = {n: e for n, e in dw.items() if n.startswith(("int8", "fp8", "mxfp8"))}
    said = []
    if eight and not any(eight.values()):
        said.append("Every dW is exact here, so it cannot choose between formats of 8 bits")
    elif eight:
        best = min(eight, key=eight.__getitem__)
        said.append(f"Of 8 bits {best} keeps dW best here ({eight[best]:.2%} off)")
    e4, e5 = dw.get("fp8 tensor"), dw.get("fp8 tensor e5m2")
    if e4 and e5 and f"{max(e4, e5) / min(e4, e5):.1f}" != "1.0":
        better, worse = ("E4M3", "E5M2") if e4 < e5 else ("E5M2", "E4M3")
        ratio = max(e4, e5) / min(e4, e5)
        said.append(f"with a scale, {better} gradients are {ratio:.1f} times nearer than {worse}")
    if ways is not None:
        dx = {way: _medians(errors)[1] for way, errors in ways.errors.items()}
        folded, again = dx["folded into G"], dx["requantized"]
        serves, other = "if its scales are folded into G", "requantized"
        if again < folded:
            serves, other = "if it is requantized along the other axis", "its scales folded into G"
        said.append(
            f"a weight stored by rows serves dX too {serves} ({min(folded, again):.2%}; {other} "
            f"{max(folded, again):.2%}; taken out of the sum as their mean "
            f"{dx['mean of scales']:.0%})"
        )
    return f"{'; '.join(said)}." if said else ""
