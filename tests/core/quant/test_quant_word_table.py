"""Codes from the word table equal those from arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from every import over
from lazy_imports import LazyImport

from qtui_core.quant import Scheme, measure, quantize
from qtui_core.quant.segments.elements import elements_of, largest_word
from qtui_core.quant.segments.parallel import Cancelled
from qtui_core.quant.segments.tensor_plan import Plan, make_plan
from qtui_core.quant.segments.word_table import (
    LEAST_ELEMENTS,
    WORDS,
    depends_on_the_word,
    word_table,
)

torch = LazyImport("torch")

COLUMNS = 1024
SCHEMES = ["e4m3", "e5m2", "e5m2:nosat", "e4m3:truncate", "e2m1:tensor", "int8:tensor",
     "int4:tensor:asym", "int8:tensor:asym:zpfloat", "int4:tensor:signed", "int8:tensor:full",
     "ternary", "fp16", "bf16", "tf32", "fp16:nosat", "fp16:truncate"]  # fmt: skip


def every_word(*, finite: bool) -> np.ndarray:
    """Every bfloat16 number, many times and shuffled, as words `[rows, 1024]`."""
    words = np.arange(WORDS, dtype=np.uint16)
    if finite:
        words = words[(words & 0x7F80) != 0x7F80]
    many = np.resize(words, LEAST_ELEMENTS + 5 * COLUMNS)
    return np.random.default_rng(0).permutation(many).reshape(-1, COLUMNS)


def both(words: np.ndarray) -> tuple[torch.Tensor, np.ndarray]:
    """As a tensor of bfloat16, and as a float32 array, for which no table is made."""
    tensor = torch.from_numpy(words.view(np.int16)).view(torch.bfloat16)
    return tensor, (words.astype(np.uint32) << 16).view(np.float32)


def plan_of(tensor, scheme: Scheme) -> Plan:
    with np.errstate(all="ignore"):
        return make_plan(elements_of(tensor), scheme)


@over("finite", [True, False])
@over(
    "text",
    SCHEMES,
)
def test_the_codes_are_those_of_float32(text, finite):
    scheme = Scheme.parse(text)
    tensor, values = both(every_word(finite=finite))
    assert word_table(plan_of(tensor, scheme), elements_of(tensor)) is not None
    assert word_table(plan_of(values, scheme), elements_of(values)) is None
    found, expected = quantize(tensor, scheme), quantize(values, scheme)
    assert np.array_equal(found.codes, expected.codes)
    assert np.array_equal(found.scales, expected.scales)
    assert found.nonfinite == expected.nonfinite
    assert (found.nonfinite == 0) == finite


def test_ordinary_weights():
    x = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(1)).bfloat16()
    for text in ("e4m3", "int8:tensor", "fp16"):
        scheme = Scheme.parse(text)
        assert np.array_equal(quantize(x, scheme).codes, quantize(x.float(), scheme).codes)


@pytest.mark.parametrize(
    "text",
    ["nf4", "int4:group64", "int8:row", "int8:column", "mxfp4", "e4m3:stochastic",
     "bf16:stochastic", "int8:tensor:outliers1.0", "nvfp4"],
)  # fmt: skip
def test_a_code_that_depends_on_more_than_the_value_is_not_looked_up(text):
    scheme = Scheme.parse(text)
    tensor, _ = both(every_word(finite=True))
    assert word_table(plan_of(tensor, scheme), elements_of(tensor)) is None


def test_integers_of_16_bits_are_no_bfloat16():
    values = every_word(finite=True)
    assert word_table(plan_of(values, Scheme.parse("e4m3")), elements_of(values)) is None


@pytest.mark.parametrize("words", [[], [0], [0x8000], [0x3F80, 0xBF81], [0xBF80, 0x3F81], [0xFF80]])
def test_the_largest_word_is_that_of_the_largest_magnitude(words):
    found = largest_word(np.array(words, np.uint16))
    assert found == max((word & 0x7FFF for word in words), default=0)


@over("finite", [True, False])
@over("text", SCHEMES)
def test_errors_by_word_are_those_of_float32(text, finite):
    """Every word occurs at a place of its own; the first place of the largest error is found,
    too."""
    scheme = Scheme.parse(text)
    tensor, values = both(every_word(finite=finite))
    found, expected = measure(tensor, scheme), measure(values, scheme)
    assert depends_on_the_word(plan_of(tensor, scheme), elements_of(tensor))
    for name in ("count", "nonfinite", "saturated", "subnormal", "overflowed", "bytes",
                 "max_abs_error", "max_abs_error_index"):  # fmt: skip
        assert getattr(found, name) == getattr(expected, name), name
    for name in ("mse", "relative_mse", "sqnr_db", "gaussian_relative_mse"):
        figure = getattr(expected, name)
        wanted = None if figure is None else pytest.approx(figure, rel=1e-5)
        assert getattr(found, name) == wanted, name


def test_errors_by_word_can_be_cancelled_and_report_progress():
    tensor, _ = both(every_word(finite=True))
    told: list[float] = []
    measure(tensor, Scheme.parse("e4m3"), progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0
    with pytest.raises(Cancelled):
        measure(tensor, Scheme.parse("e4m3"), cancelled=lambda: len(told) > 0)


def test_no_error_has_no_place_but_the_first():
    tensor = torch.zeros(1024, 1024, dtype=torch.bfloat16)
    report = measure(tensor, Scheme.parse("fp16"))
    assert (report.mse, report.max_abs_error, report.max_abs_error_index) == (0, 0, (0, 0))
