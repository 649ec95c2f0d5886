import numpy as np
import pytest
from every import over

from qtui_core.errors import UsageError
from qtui_core.quant import Scheme, quantize

ROWS, COLUMNS, GROUP = 24, 192, 64


def values(kind):
    x = np.random.default_rng(5).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    if kind == "bfloat16":  # coarse values, where ties are common
        x = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    if kind == "shifted":
        x += np.float32(1.5)
    if kind == "few":
        x = np.rint(x * 2) / 2
    if kind == "one-sided":
        x = np.abs(x)
    return np.ascontiguousarray(x)


KINDS = ["normal", "bfloat16", "shifted", "few", "one-sided"]
LAYOUTS = {
    "group64": (1, GROUP),
    "row": (1, COLUMNS),
    "column": (ROWS, 1),
    "tensor": (ROWS, COLUMNS),
}


# Against torchao


def torchao_affine(x, mapping, block, low, high):
    torch = pytest.importorskip("torch")
    primitives = pytest.importorskip("torchao.quantization.quant_primitives")
    tensor = torch.from_numpy(x)
    dtype = torch.uint8 if low == 0 else torch.int8
    scale, zero = primitives.choose_qparams_affine(
        tensor, getattr(primitives.MappingType, mapping), block, dtype, low, high
    )
    codes = primitives.quantize_affine(tensor, block, scale, zero, dtype, low, high)
    dequantized = primitives.dequantize_affine(codes, block, scale, zero, dtype, low, high)
    return codes.numpy(), scale.numpy(), zero.numpy(), dequantized.numpy()


@over("kind", KINDS)
@over("layout", LAYOUTS)
@over("bits", [2, 3, 4, 5, 8])
@over("option", ["", ":full", ":asym"])
def test_bytes_of_torchao(bits, option, layout, kind):
    half = 2 ** (bits - 1)
    mapping, low, high = {
        "": ("SYMMETRIC", 1 - half, half - 1),
        ":full": ("SYMMETRIC", -half, half - 1),
        ":asym": ("ASYMMETRIC", 0, 2 * half - 1),
    }[option]
    x = values(kind)
    q = quantize(x, Scheme.parse(f"int{bits}:{layout}{option}"))
    codes, scale, zero, dequantized = torchao_affine(x, mapping, LAYOUTS[layout], low, high)
    np.testing.assert_array_equal(q.scales.reshape(-1), scale.reshape(-1))
    np.testing.assert_array_equal(q.codes, codes)
    np.testing.assert_array_equal(q.dequantize(), dequantized)
    if q.zero_points is not None:
        np.testing.assert_array_equal(q.zero_points.reshape(-1), zero.reshape(-1))


def test_zero_groups_as_torchao():
    x = values("normal")
    x[3, :GROUP] = 0
    x[4, :GROUP] *= np.float32(1e-40)
    q = quantize(x, Scheme.parse("int4:group64"))
    codes, scale, _, _ = torchao_affine(x, "SYMMETRIC", (1, GROUP), -7, 7)
    np.testing.assert_array_equal(q.scales, scale.reshape(q.scales.shape))
    np.testing.assert_array_equal(q.codes, codes)


# Against the definitions, in float64


@over("kind", KINDS)
@over("bits", range(2, 9))
def test_signed_rule_is_that_of_gguf(bits, kind):
    """Q4_0: d = max / -8, q = min(15, trunc(x / d + 8.5)), where max is the first element of
    the largest magnitude (ggml quantize_row_q4_0_ref), here for any width."""
    x = values(kind)
    half = 2 ** (bits - 1)
    groups = x.reshape(-1, GROUP)
    extreme = groups[np.arange(len(groups)), np.abs(groups).argmax(axis=1)]
    scale = extreme / np.float32(-half)
    scaled = groups * (np.float32(1) / scale)[:, None] + np.float32(half + 0.5)
    codes = np.minimum(np.trunc(scaled), 2 * half - 1).astype(int) - half
    q = quantize(x, Scheme.parse(f"int{bits}:group64:signed"))
    np.testing.assert_array_equal(q.scales.reshape(-1), scale)
    np.testing.assert_array_equal(q.codes.reshape(-1, GROUP), codes)
    np.testing.assert_array_equal(
        q.dequantize().reshape(-1, GROUP), codes.astype(np.float32) * scale[:, None]
    )
    assert (q.codes.reshape(-1, GROUP) == -half).any(axis=1).all()


def test_signed_rule_takes_the_first_of_equal_magnitudes():
    x = np.array([[1.0, -2.0, 2.0, 0.5], [1.0, 2.0, -2.0, 0.5]])
    for granularity in ("row", "group4", "block4"):
        q = quantize(x, Scheme.parse(f"int4:{granularity}:signed"))
        assert q.scales.reshape(-1).tolist() == [0.25, -0.25]
    assert quantize(x, Scheme.parse("int4:tensor:signed")).scales == [0.25]


@over("bits", range(2, 9))
@over("option", ["", ":full", ":asym"])
def test_codes_are_the_nearest_levels(bits, option):
    """In exact arithmetic no other code of the range is nearer, rounding of the scale aside."""
    x = values("shifted")
    q = quantize(x, Scheme.parse(f"int{bits}:row{option}"))
    half = 2 ** (bits - 1)
    codes = np.arange(0, 2 * half) if option == ":asym" else np.arange(-half, half)
    if option == "":
        codes = codes[1:]
    zero = 0 if q.zero_points is None else q.zero_points.astype(float)
    levels = (codes - zero) * q.scales.astype(np.float64)
    nearest = np.abs(x[:, :, None].astype(np.float64) - levels[:, None, :]).min(axis=2)
    error = np.abs(x - q.dequantize().astype(np.float64))
    np.testing.assert_allclose(error, nearest, rtol=1e-4, atol=1e-6)


def test_worked_example():
    """S = 1/127·23.5 … of a small vector, restricted range [-127, 127]."""
    x = np.array([[23.5, -11.75, 0.0, 5.0]])
    q = quantize(x, Scheme.parse("int8:row"))
    assert q.scales[0, 0] == np.float32(23.5) / np.float32(127)
    assert q.codes.tolist() == [[127, -64, 0, 27]]  # -63.5 rounds half to even
    asymmetric = quantize(x, Scheme.parse("int8:row:asym"))
    scale = (23.5 + 11.75) / 255
    assert asymmetric.scales[0, 0] == np.float32(35.25) / np.float32(255)
    assert asymmetric.zero_points[0, 0] == round(11.75 / scale)
    assert asymmetric.codes.tolist() == [[255, 0, 85, 121]]


def test_code_dtypes():
    x = values("normal")
    for text, dtype in (("int4", np.int8), ("int8:signed", np.int8), ("int4:asym", np.uint8)):
        assert quantize(x, Scheme.parse(text)).codes.dtype == dtype


# One scale for the whole model


def test_model_scale_is_that_of_the_given_extent():
    x = values("normal")
    q = quantize(x, Scheme.parse("int8:model"), model_absmax=10.0)
    assert q.scales == [np.float32(10) / np.float32(127)]
    np.testing.assert_allclose(q.dequantize(), x, atol=10 / 127 / 2 * 1.001)
    asymmetric = quantize(x, Scheme.parse("int8:model:asym"), model_absmax=(-4.0, 11.0))
    assert asymmetric.scales == [np.float32(15) / np.float32(255)]
    assert asymmetric.zero_points == [68]
    signed = quantize(x, Scheme.parse("int8:model:signed"), model_absmax=(-12.0, 11.0))
    assert signed.scales == [np.float32(12 / 128)]


def test_model_scale_without_an_extent_is_that_of_the_tensor():
    x = values("normal")
    np.testing.assert_array_equal(
        quantize(x, Scheme.parse("int8:model")).codes,
        quantize(x, Scheme.parse("int8:tensor")).codes,
    )


def test_elements_beyond_the_extent_of_the_model_are_clipped():
    x = np.array([[5.0, -5.0, 1.0]])
    for option in ("", ":asym", ":full", ":signed"):
        scheme = Scheme.parse(f"int8:model{option}")
        y = quantize(x, scheme, model_absmax=1.0).dequantize()
        np.testing.assert_allclose(y, [[1.0, -1.0, 1.0]], rtol=0.01)


@pytest.mark.parametrize("extent", [float("nan"), float("inf"), (3.0, 1.0), (float("nan"), 1.0)])
def test_impossible_extents_are_refused(extent):
    with pytest.raises(UsageError, match="extent"):
        quantize(np.ones((2, 2)), Scheme.parse("int8:model"), model_absmax=extent)
