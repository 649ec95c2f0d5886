"""A tensor of bfloat16 words is quantized and measured as the same values in float32."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
from every import over
from lazy_imports import LazyImport

from qtui_core.quant import Scheme, measure, quantize

torch = LazyImport("torch")

COLUMNS = 1024
SCHEMES = [
    "e4m3", "e5m2", "e2m1:tensor", "int8:tensor",
    "int4:tensor:asym", "int8:tensor:asym:zpfloat", "int4:tensor:signed", "int8:tensor:full",
    "ternary", "fp16", "bf16", "tf32", "nf4", "mxfp4", "nvfp4",
]  # fmt: skip


def every_word(*, finite: bool) -> np.ndarray:
    """Every bfloat16 number, shuffled, as words `[rows, 1024]`."""
    words = np.arange(1 << 16, dtype=np.uint16)
    if finite:
        words = words[(words & 0x7F80) != 0x7F80]
    words = np.resize(words, len(words) // COLUMNS * COLUMNS)
    return np.random.default_rng(0).permutation(words).reshape(-1, COLUMNS)


@over("finite", [True, False])
@over("text", SCHEMES)
def test_codes_and_errors_are_those_of_float32(text, finite):
    words, scheme = every_word(finite=finite), Scheme.parse(text)
    tensor = torch.from_numpy(words.view(np.int16)).view(torch.bfloat16)
    values = (words.astype(np.uint32) << 16).view(np.float32)
    found, expected = quantize(tensor, scheme), quantize(values, scheme)
    assert np.array_equal(found.codes, expected.codes)
    assert np.array_equal(found.scales, expected.scales)
    assert found.nonfinite == expected.nonfinite
    assert (found.nonfinite == 0) == finite
    assert asdict(measure(tensor, scheme)) == asdict(measure(values, scheme))


def test_no_error_has_no_place_but_the_first():
    tensor = torch.zeros(1024, 1024, dtype=torch.bfloat16)
    report = measure(tensor, Scheme.parse("fp16"))
    assert (report.mse, report.max_abs_error, report.max_abs_error_index) == (0, 0, (0, 0))
