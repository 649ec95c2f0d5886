"""The compiled kernels give the same bytes as the plain path."""

from __future__ import annotations

import numpy as np
import pytest
from lazy_imports import LazyImport

from qtui_core.quant import Scheme, quantize
from qtui_core.quant.segments import compiled as module
from qtui_core.quant.segments.compiled import compiled_codes, quantize_compiled

torch = LazyImport("torch")

pytestmark = pytest.mark.slow  # a kernel takes a second or two to compile


def tough(shape: tuple[int, ...]) -> np.ndarray:
    """bf16 values, so that ties occur: huge, tiny and subnormal values, zeros of both signs, a
    constant group and a group of zeros."""
    rng = np.random.default_rng(0)
    words = rng.standard_normal(shape).astype(np.float32).reshape(-1).view(np.uint32)
    x = (words & np.uint32(0xFFFF0000)).view(np.float32)
    x[::7] *= np.float32(2.0**-100)
    x[::11] *= np.float32(2.0**80)
    x[:64], x[128:192], x[256:320], x[320:384] = 0, 2.0**-133, 1, 2.0**127
    x[500] = -0.0
    return x.reshape(shape)


def bfloat16(x: np.ndarray) -> torch.Tensor:
    words = (x.reshape(-1).view(np.uint32) >> 16).astype(np.uint16).view(np.int16)
    return torch.from_numpy(words.reshape(x.shape)).view(torch.bfloat16)


def assert_same(x, scheme):
    ours, plain = quantize_compiled(x, scheme), quantize(x, scheme)
    assert np.array_equal(ours.codes, plain.codes)
    assert ours.codes.dtype == plain.codes.dtype
    assert np.array_equal(ours.scales, plain.scales)
    assert ours.scales.shape == plain.scales.shape
    assert np.array_equal(ours.dequantize(), plain.dequantize(), equal_nan=True)
    assert ours.nonfinite == plain.nonfinite


SCHEMES = (
    "nf4", "nf4:dq", "nf4:block128", "fp4", "int4:group64", "int4:group64:full", "int8:row",
    "int8:tensor", "e4m3", "e4m3:group128", "e5m2", "e5m2:row", "e2m1:group64",
)  # fmt: skip


@pytest.mark.parametrize("text", SCHEMES)
def test_bytes_are_those_of_the_plain_path(text):
    scheme = Scheme.parse(text)
    random = np.random.default_rng(1).standard_normal((96, 640)).astype(np.float32)
    for x in (tough((64, 512)), random, tough((1, 512)), np.zeros((4, 128), np.float32)):
        assert compiled_codes(x.reshape(-1), scheme, x.shape) is not None
        assert_same(x, scheme)
        assert_same(bfloat16(tough(x.shape)), scheme)


@pytest.mark.parametrize("text", ["nf4", "fp4", "int4:group64", "int8:row", "int8:tensor"])
def test_several_calls_of_a_kernel_give_the_same_bytes(text, monkeypatch):
    monkeypatch.setattr(module, "CALL", 5000)  # parts of unequal length
    for x in (tough((7, 2560)), tough((1, 17920))):
        assert_same(x, Scheme.parse(text))
        assert_same(bfloat16(x), Scheme.parse(text))


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("nf4", (3, 65)),  # a short last block
        ("int4:group64", (8, 100)),  # groups that end with their rows
        ("int4:asym", (8, 128)),
        ("int4:group64:signed", (8, 128)),
        ("int8:column", (8, 128)),
        ("e4m3:model", (8, 128)),
        ("int4:group64:stochastic", (8, 128)),
        ("bf16", (8, 128)),
        ("nf4", (0, 64)),
    ],
)
def test_a_case_without_a_kernel_is_the_plain_paths(text, shape):
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    scheme = Scheme.parse(text)
    assert compiled_codes(x.reshape(-1), scheme, shape) is None
    assert_same(x, scheme)


def test_values_that_are_not_finite_are_the_plain_paths():
    x = np.random.default_rng(3).standard_normal((8, 128)).astype(np.float32)
    x[3, 7], x[5, 1] = np.nan, -np.inf
    for text in ("nf4", "int8:row", "e4m3"):
        assert_same(x, Scheme.parse(text))
        assert quantize_compiled(x, Scheme.parse(text)).nonfinite == 2


def test_words_that_are_integers_are_not_taken_for_bfloat16():
    x = np.arange(1024, dtype=np.uint16).reshape(8, 128)
    assert_same(x, Scheme.parse("int8:row"))


def test_subnormals_survive_the_libraries_of_the_kernels():
    """A library that is built with fast math can make the whole process flush subnormals to
    zero."""
    quantize_compiled(np.ones((2, 64), np.float32), Scheme.parse("nf4"))
    assert np.float32(1e-40) * np.float32(1) != 0
    assert float(torch.full((64,), 1e-40).mul(1)[3]) != 0


def test_a_compiler_that_fails_is_a_sentence(monkeypatch):
    def broken(*names):
        def kernel(groups):
            raise RuntimeError("no C++ compiler\nand more")

        return kernel

    monkeypatch.setattr(module, "_kernel", broken)
    with pytest.raises(
        module.QtuiError, match=r"nf4:block64 could not be compiled \(no C\+\+ comp"
    ):
        quantize_compiled(np.ones((2, 64), np.float32), Scheme.parse("nf4"))
