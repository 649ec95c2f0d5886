"""Float zero points, compared with torchao, and every option on awkward tensors."""

import numpy as np
import pytest
from every import in_parts, over
from lazy_imports import LazyImport

from qtui_core.quant import (
    Scheme,
    bits_per_parameter,
    explain,
    levels,
    measure,
    quantize,
)
from qtui_core.quant.layout import scale_shape

torch = LazyImport("torch")


def torchao_float_zero(x, bits, block):
    primitives = pytest.importorskip("torchao.quantization.quant_primitives")
    t, top = torch.from_numpy(x), 2**bits - 1
    scale, zero = primitives._choose_qparams_affine_tinygemm(
        t, primitives.MappingType.ASYMMETRIC, block, torch.uint8, 0, top
    )
    codes = primitives._quantize_affine_tinygemm(t, block, scale, zero, torch.uint8, 0, top)
    values = primitives._dequantize_affine_tinygemm(codes, block, scale, zero, torch.uint8, 0, top)
    return scale.numpy(), zero.numpy(), codes.numpy(), values.numpy()


@over("bits", [2, 3, 4, 8])
@over("size", [8, 64, 256])
def test_float_zero_points_are_those_of_tinygemm(bits, size):
    rng = np.random.default_rng(size)
    for shift in (0.0, 3.0, -50.0):
        x = (rng.standard_normal((32, 256)) + shift).astype(np.float32)
        x = torch.from_numpy(x).bfloat16().float().numpy()  # values with ties
        x[3], x[4, :size] = 0, 1.25
        q = quantize(x, Scheme.parse(f"int{bits}:group{size}:asym:zpfloat"))
        scale, zero, codes, values = torchao_float_zero(x, bits, (1, size))
        np.testing.assert_array_equal(q.scales, scale.reshape(q.scales.shape))
        np.testing.assert_array_equal(q.zero_points, zero.reshape(q.scales.shape))
        np.testing.assert_array_equal(q.codes, codes)
        np.testing.assert_array_equal(q.dequantize(), values)


def test_float_zero_points_are_float32_and_paid_for():
    x = np.random.default_rng(1).standard_normal((8, 128)).astype(np.float32) + 9
    scheme = Scheme.parse("int4:group64:asym:zpfloat")
    q = quantize(x, scheme)
    assert q.zero_points.dtype == np.float32
    assert q.zero_points.shape == q.scales.shape
    assert bits_per_parameter(scheme, x.shape) == 4 + (32 + 32) / 64
    # The range need not contain zero, so it is not extended to it.
    assert measure(x, scheme).mse < measure(x, Scheme.parse("int4:group64:asym")).mse / 5
    np.testing.assert_allclose(levels(scheme, 2.0, 5.0), np.linspace(2, 5, 16))


@pytest.mark.parametrize("granularity", ["tensor", "row", "column", "group7", "block33"])
def test_nonfinite_elements_do_not_stretch_a_range(granularity):
    x = (np.random.default_rng(2).standard_normal((12, 70)) + 100).astype(np.float32)
    holes = x.copy()
    holes[::3, ::5] = np.nan
    holes[1, 1], holes[5] = np.inf, np.nan
    scheme = Scheme.parse(f"int8:{granularity}:asym:zpfloat")
    found = quantize(holes, scheme).dequantize()
    there = np.isfinite(holes)
    assert np.abs(found - holes)[there].max() < 0.02


def test_constant_groups_are_exact_under_a_float_zero_point():
    for value in (0.0, 0.1, -7.3e5, 3e38):
        x = np.full((4, 64), value, np.float32)
        np.testing.assert_array_equal(
            quantize(x, Scheme.parse("int4:group64:asym:zpfloat")).dequantize(), x
        )


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_ranges_beside_the_largest_float_keep_their_steps(bits):
    rng = np.random.default_rng(5)
    x = (rng.uniform(-1, 1, (40, 7)) * 3.4e38).astype(np.float32)
    found = quantize(x, Scheme.parse(f"int{bits}:group7:asym:zpfloat")).dequantize()
    wide = x.astype(np.float64)
    step = (wide.max(axis=1) - wide.min(axis=1)) / (2**bits - 1)
    error = np.abs(found - wide).max(axis=1)
    assert (error <= 0.5001 * step).all()


OPTIONS = [
    "fp16:stochastic1",
    "tf32:stochastic",
    "e2m1:stochastic",
    "int8:row:stochastic",
    "int3:group7:asym:zpfloat",
    "int4:tensor:asym:zpfloat:stochastic",
    "int8:row:outliers2",
    "int8:token:outliers0.5",
    "int8:tensor:full:outliers1.5",
    "int4:group7:asym:outliers2",
    "int4:block33:signed:outliers2",
    "int4:group7:asym:zpfloat:outliers2:stochastic",
]


@in_parts(2)
@over("text", OPTIONS)
def test_awkward_tensors(text, awkward, parts):
    """Every option for every awkward tensor: the measured error is that of the quantized tensor,
    and has an explanation."""
    scheme = Scheme.parse(text)
    assert str(Scheme.parse(str(scheme))) == str(scheme)
    for name, x in list(awkward.items())[OPTIONS.index(text) % parts :: parts]:
        q, report = quantize(x, scheme), measure(x, scheme)
        with np.errstate(all="ignore"):
            wide = np.asarray(x).astype(np.float32).astype(np.float64)
            found = q.dequantize().astype(np.float64)
        assert found.shape == x.shape
        there = np.isfinite(wide) & np.isfinite(found)
        expected = np.mean((wide[there] - found[there]) ** 2) if there.any() else 0.0
        assert report.mse == pytest.approx(expected, rel=1e-5, abs=1e-80), name
        assert report.bytes == q.nbytes
        assert report.bits_per_parameter == q.bits_per_parameter
        assert q.scales.shape == scale_shape(scheme.granularity, x.shape)
        assert explain(report).endswith("."), name
        assert np.isfinite(found[np.isfinite(wide)]).all(), name


@over("text", OPTIONS)
def test_one_answer_for_one_and_two_threads(text):
    x = np.random.default_rng(3).standard_normal((600, 1000)).astype(np.float32)
    scheme = Scheme.parse(text)
    one, two = (quantize(x, scheme, threads=n) for n in (1, 2))
    np.testing.assert_array_equal(one.codes, two.codes)
    np.testing.assert_array_equal(one.dequantize(threads=2), two.dequantize(threads=1))
    assert measure(x, scheme, threads=1) == measure(x, scheme, threads=2)


GAUSSIAN = [
    ("int4:stochastic", 1.0, None),
    ("int4:group16:asym:stochastic", 1.0, None),
    ("e4m3:row:stochastic", 1.0, None),
    ("fp16:stochastic", 1.0, None),
    ("fp16:stochastic", 3e-7, None),
    ("int4:asym:zpfloat", 1.0, None),
    ("int2:group4:asym:zpfloat", 1.0, None),
    ("int4:asym:zpfloat:stochastic", 1.0, None),
    ("int4:model:asym:zpfloat", 1.0, (-1.0, 2.5)),
    ("int8:row:outliers9", 1.0, None),
]


@over(("text", "sigma", "extent"), GAUSSIAN)
def test_expected_error_of_normal_values(text, sigma, extent):
    from qtui_core.quant import gaussian_relative_mse

    scheme, rng = Scheme.parse(text), np.random.default_rng(4)
    found = [
        measure(
            (sigma * rng.standard_normal((256, 1024))).astype(np.float32),
            scheme,
            model_absmax=extent,
        ).relative_mse
        for _ in range(4)
    ]
    expected = gaussian_relative_mse(scheme, (256, 1024), sigma=sigma, model_absmax=extent)
    assert np.mean(found) == pytest.approx(expected, rel=0.012)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("int8:row:stochastic", "rounding at random costs 3.0 dB and has no bias"),
    ],
)
def test_the_cost_of_a_rounding_is_named(text, said):
    x = np.random.default_rng(5).standard_normal((256, 2048)).astype(np.float32)
    assert said in explain(measure(x, Scheme.parse(text)))
