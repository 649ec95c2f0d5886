"""Findings with one picture of each kind, made up."""

from __future__ import annotations

import math

from qtui_core.lab.results import (
    Density,
    ExponentHistogram,
    Findings,
    FormatSpan,
    Heat,
    LabBar,
    LabBars,
    LabChart,
    LabColumn,
    LabFrontier,
    LabLine,
    LabResult,
    MatrixProduct,
    Picture,
    Point,
)

CHART = LabChart(
    "difference to fp32, paired",
    "step",
    "d, nats",
    (
        LabLine("nearest", (0.0, 0.004, 0.009), low=(0.0, 0.003, 0.008), high=(0.0, 0.005, 0.01)),
        LabLine("fp32", (0.0, 0.0, 0.0), faint=True),
    ),
    floor=0.001,
)
DENSITY = Density(
    "updates over weights", "log2 |weight|", "log2 |update|", -8.0, 0.0, -16.0, 0.0,
    tuple(tuple(10 * (r + 1) * (c + 1) for c in range(8)) for r in range(16)),
    (LabLine("bf16 loses what is below", (-16.0, -8.0), (-8.0, 0.0)),),
)  # fmt: skip
HISTOGRAM = ExponentHistogram(
    "gradients", -20, (("gradients", tuple(range(1, 21))),),
    (FormatSpan("FP16", -24, -14, math.log2(65504)), FormatSpan("E4M3", -9, -6, math.log2(448))),
)  # fmt: skip
HEAT = Heat(
    "relative error of each product", ("int8 row", "int8 tensor"), ("Y", "dX"),
    ((0.005, 0.008), (0.009, None)), "relative error", log=True,
    scale_axes=({"X": ("tokens",), "W": ("outputs",), "G": ("tokens",)}, {}),
    products=(
        MatrixProduct("X", "W'", "tokens", "inputs", "outputs"),
        MatrixProduct("G", "W", "tokens", "outputs", "inputs"),
    ),
)  # fmt: skip
FRONTIER = LabFrontier(
    "error against what is left out", "share left", "error",
    ((0.0, 0.06), (0.5, 0.02), (1.0, 0.0)), (Point("head and last block", 0.18, 0.047),),
)  # fmt: skip
BARS = LabBars(
    "held-out loss beyond fp32's", "nats",
    (
        ("2 bits", (LabBar("PTQ", 0.13), LabBar("QAT", 0.09, 0.08, 0.1, "recovers 31%"))),
        ("4 bits", (LabBar("PTQ", 0.003), LabBar("QAT", -0.001))),
    ),
)  # fmt: skip
PICTURES: tuple[Picture, ...] = (CHART, DENSITY, HISTOGRAM, HEAT, FRONTIER, BARS)


def result(**changed: object) -> LabResult:
    """A finished experiment with all of the pictures."""
    findings = Findings(
        (
            LabColumn("recipe", "recipe"),
            LabColumn("d", "d train", "nats"),
            LabColumn("kept", "kept", "share"),
            LabColumn("size", "states", "bytes"),
        ),
        ({"recipe": "nearest", "d": 0.009, "kept": 0.052, "size": 4 << 20}, {"recipe": "fp32"}),
        PICTURES,
        "Nearest loses 95% of each step; stochastic rounding would do.",
        floor=0.0004,
        notes=("fp8 is emulated.",),
    )
    values = {
        "experiment": "underflow",
        "question": "Does the update reach the weight?",
        "model": "demo",
        "settings": {"lr": 1e-5, "store": "bf16", "steps": 40, "seeds": (0, 1), "text": None},
        "seeds": (0, 1),
        "seconds": 41.2,
        "versions": {"python": "3.11.7"},
        "jobs": 4,
        "done": 4,
        "findings": findings,
        "ended": "done",
    }
    return LabResult(**(values | changed))
