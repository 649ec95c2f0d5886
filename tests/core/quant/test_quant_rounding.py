"""Truncation, formats that do not saturate, and float zero points, compared with other
libraries."""

import ml_dtypes
import numpy as np
import pytest
from every import in_parts, over
from lazy_imports import LazyImport

from qtui_core.errors import UsageError
from qtui_core.formats import Rounding, get_format
from qtui_core.formats.array import decode_array, encode_array
from qtui_core.quant import (
    Scheme,
    bits_per_parameter,
    error_map,
    explain,
    levels,
    measure,
    quantize,
)
from qtui_core.quant.scan.attribution import column_errors
from qtui_core.quant.segments.layout import scale_shape

torch = LazyImport("torch")

ML_DTYPES = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
}


def codes_and_midpoints(name):
    """Every finite number of a format, the midpoints, their neighbours, and values beyond the
    range."""
    fmt = get_format(name)
    values = decode_array(fmt, np.arange(fmt.max_code + 1)).astype(np.float64)
    step = values[-1] - values[-2]
    values = np.append(values, values[-1] + step * np.array([1, 1.5, 2, 40]))
    middle = (values[1:] + values[:-1]) / 2
    with np.errstate(over="ignore"):
        x = np.concatenate([values, middle]).astype(np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(0)), np.nextafter(x, np.float32(1e38))])
    return np.concatenate([x, -x])


def codes_of(name, options, x):
    """Codes of a cast, or of a scaled float under the scale 1."""
    if name in ("bf16", "fp16", "tf32"):
        return quantize(x, Scheme.parse(f"{name}{options}")).codes
    largest = float(get_format(name).max)
    return quantize(x, Scheme.parse(f"{name}:model{options}"), model_absmax=largest).codes


@pytest.mark.parametrize("name", ["bf16", "fp16", "tf32", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1"])
def test_truncation_is_rounding_toward_zero(name):
    x = codes_and_midpoints(name)
    x = x[np.isfinite(x)]
    with np.errstate(over="ignore"):
        expected = encode_array(get_format(name), x, rounding=Rounding.TOWARD_ZERO, saturate=True)
    np.testing.assert_array_equal(codes_of(name, ":truncate", x), expected)


@pytest.mark.parametrize("name", ML_DTYPES)
def test_not_saturating_is_what_ml_dtypes_does(name):
    x = codes_and_midpoints(name)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(ML_DTYPES[name])
    width = np.uint8 if name[0] == "e" else np.uint16
    found = codes_of(name, ":nosat", x)
    numbers = np.isfinite(expected.astype(np.float32))
    np.testing.assert_array_equal(found[numbers], expected.view(width)[numbers])
    scheme = Scheme.parse(name if name in ("bf16", "fp16") else f"{name}:model")
    from qtui_core.quant.segments.process import make_coder

    back = np.empty(found.size, np.float32)
    make_coder(scheme)._values(found, back)
    np.testing.assert_array_equal(back, expected.astype(np.float32))
    assert (~numbers).sum() > 4


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "fp16", "bf16"])
@pytest.mark.parametrize("rounding", ["", ":truncate"])
def test_not_saturating_is_what_the_reference_does(name, rounding):
    x = codes_and_midpoints(name)
    how = Rounding.TOWARD_ZERO if rounding else Rounding.NEAREST_EVEN
    with np.errstate(over="ignore"):
        expected = encode_array(get_format(name), x, rounding=how, saturate=False)
    np.testing.assert_array_equal(codes_of(name, rounding + ":nosat", x), expected)


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "fp16", "bf16"])
def test_infinities_and_nan_where_nothing_saturates(name):
    x = np.array([np.inf, -np.inf, np.nan, 1.0], np.float32)
    found = quantize(x, Scheme.parse(f"{name}:nosat")).dequantize()
    special = np.float32(np.nan if name == "e4m3" else np.inf)
    np.testing.assert_array_equal(found, [special, -special, np.nan, 1.0])


def test_what_overflows_is_counted_and_left_out_of_the_error():
    x = np.array([[1.0, 2.0, 65519.0, 65520.0, -1e6, np.nan, 3.00001]], np.float32)
    report = measure(x, Scheme.parse("fp16:nosat"))
    assert (report.overflowed, report.saturated, report.nonfinite) == (2, 1, 1)
    rest = x[0, [0, 1, 2, 6]].astype(np.float64)
    error = rest - rest.astype(np.float16).astype(np.float64)
    assert report.mse == pytest.approx(np.mean(error**2), rel=1e-6)
    assert report.relative_mse == pytest.approx(np.sum(error**2) / np.sum(rest**2), rel=1e-6)
    assert report.max_abs_error_index == (0, 2)
    assert measure(x, Scheme.parse("fp16")).saturated == 3
    said = explain(measure(np.nan_to_num(x), Scheme.parse("fp16:nosat")))
    assert said.startswith("2 elements lie beyond the largest number of fp16 and became infinite")
    beyond = measure(np.array([3.0, 500.0]), Scheme.parse("e4m3:model:nosat"), model_absmax=448.0)
    assert beyond.overflowed == 1
    assert "became NaN" in explain(beyond)
    cells = error_map(x, Scheme.parse("fp16:nosat"), 1, 7).cells[0]
    np.testing.assert_array_equal(cells[[3, 4, 5]], 0)
    assert cells.max() == 15.0
    columns = column_errors(x, Scheme.parse("fp16:nosat"))
    assert columns.squared_error.sum() / columns.squared.sum() == pytest.approx(
        report.relative_mse, rel=1e-6
    )
    lost = measure(np.full(3, 1e6), Scheme.parse("fp16:nosat"))
    assert lost.overflowed == 3
    assert lost.relative_mse is None
    assert explain(lost).startswith("3 elements")


@pytest.mark.parametrize("rounding", ["", ":stochastic", ":truncate"])
@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_nothing_overflows_under_a_scale_of_its_own(name, rounding):
    x = np.random.default_rng(0).standard_normal((300, 64)).astype(np.float32)
    report = measure(x, Scheme.parse(f"{name}:row{rounding}:nosat"))
    assert report.overflowed == 0
    assert report.mse == measure(x, Scheme.parse(f"{name}:row{rounding}")).mse


@pytest.mark.parametrize("text", ["e2m1:nosat", "e3m0:nosat", "int4:nosat", "nf4:nosat"])
def test_formats_with_neither_infinity_nor_nan_saturate(text):
    with pytest.raises(UsageError, match="nosat"):
        Scheme.parse(text)


@over("bits", [2, 4, 8])
@over("granularity", ["tensor", "row", "column", "group7", "block33"])
def test_truncated_integers_are_quotients_cut_by_torch(bits, granularity):
    x = np.random.default_rng(bits).standard_normal((24, 70)).astype(np.float32)
    x = torch.from_numpy(x).bfloat16().float().numpy()
    for options in ("", ":full", ":asym"):
        q = quantize(x, Scheme.parse(f"int{bits}:{granularity}{options}:truncate"))
        at = [[q.scale_at(r, c) for c in range(70)] for r in range(24)]
        scale, zero = (torch.tensor(np.array(at, np.float32)[..., i]) for i in (0, 1))
        expected = (torch.from_numpy(x) / scale).trunc() + zero
        high = 2**bits - 1 if options == ":asym" else 2 ** (bits - 1) - 1
        low = 0 if options == ":asym" else -high - (options == ":full")
        np.testing.assert_array_equal(q.codes, expected.clamp(low, high).numpy())


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
    "bf16:truncate",
    "fp16:stochastic1",
    "fp16:truncate:nosat",
    "tf32:stochastic",
    "bf16:nosat",
    "e4m3:row:nosat",
    "e4m3:group7:stochastic2:nosat",
    "e5m2:column:truncate",
    "e2m1:stochastic",
    "int4:truncate",
    "int8:row:stochastic",
    "int4:column:asym:truncate",
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
        assert report.overflowed == (np.isfinite(wide) & ~np.isfinite(found)).sum(), name
        expected = np.mean((wide[there] - found[there]) ** 2) if there.any() else 0.0
        assert report.mse == pytest.approx(expected, rel=1e-5, abs=1e-80), name
        assert report.bytes == q.nbytes
        assert report.bits_per_parameter == q.bits_per_parameter
        assert q.scales.shape == scale_shape(scheme.granularity, x.shape)
        assert explain(report).endswith("."), name
        if scheme.saturate:
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
    ("int4:truncate", 1.0, None),
    ("int8:row:truncate", 1.0, None),
    ("int4:full:truncate", 1.0, None),
    ("int4:asym:truncate", 1.0, None),
    ("int2:group16:asym:truncate", 1.0, None),
    ("e4m3:row:truncate", 1.0, None),
    ("bf16:truncate", 1.0, None),
    ("int4:stochastic", 1.0, None),
    ("int4:group16:asym:stochastic", 1.0, None),
    ("e4m3:row:stochastic", 1.0, None),
    ("fp16:stochastic", 1.0, None),
    ("fp16:stochastic", 3e-7, None),
    ("int4:asym:zpfloat", 1.0, None),
    ("int2:group4:asym:zpfloat", 1.0, None),
    ("int3:group3:asym:zpfloat:truncate", 1.0, None),
    ("int4:asym:zpfloat:stochastic", 1.0, None),
    ("int4:model:asym:zpfloat", 1.0, (-1.0, 2.5)),
    ("int4:model:asym:zpfloat:truncate", 1.0, (-1.0, 2.5)),
    ("fp16:nosat", 3e4, None),
    ("fp16:stochastic:nosat", 3e4, None),
    ("e4m3:model:nosat", 1.0, 1.0),
    ("e4m3:model:stochastic:nosat", 1.0, 1.0),
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
        ("int4:truncate", "truncation costs 5.7 dB, so round to nearest instead: int4:group64"),
        ("bf16:truncate", "truncation costs 6.0 dB, so round to nearest instead: bf16 "),
        ("int8:row:stochastic", "rounding at random costs 3.0 dB and has no bias"),
    ],
)
def test_the_cost_of_a_rounding_is_named(text, said):
    x = np.random.default_rng(5).standard_normal((256, 2048)).astype(np.float32)
    assert said in explain(measure(x, Scheme.parse(text)))
