"""NF4 and FP4, compared with the installed bitsandbytes on the CPU. Tensors are flat, because its
AVX512 dequantization is wrong for rows whose length is a multiple of 16 but not of the block."""

import numpy as np
import pytest
from every import over
from lazy_imports import LazyImport

from qtui_core.quant import Scheme, quantize
from qtui_core.quant.codebook import (
    FP4_LEVELS,
    NESTED_BLOCK,
    NF4_LEVELS,
    dynamic_map,
    nearest_codes,
)
from qtui_core.quant.coders import CodebookCoder

torch = LazyImport("torch")
functional = LazyImport("bitsandbytes.functional")


def theirs(x, kind="nf4", block=64, **options):
    tensor = torch.from_numpy(np.ascontiguousarray(x)).reshape(-1)
    packed, state = functional.quantize_4bit(tensor, quant_type=kind, blocksize=block, **options)
    return packed, state


def assert_same_bytes(x, block=64):
    packed, state = theirs(x, block=block)
    ours = quantize(x, Scheme.parse(f"nf4:block{block}"))
    np.testing.assert_array_equal(ours.codes, packed.numpy())
    np.testing.assert_array_equal(ours.scales.view(np.uint32), state.absmax.numpy().view(np.uint32))
    dequantized = functional.dequantize_4bit(packed, state).numpy().reshape(-1)
    np.testing.assert_array_equal(ours.dequantize(), dequantized[: x.size])


def normal(count, seed=0, dtype=None):
    x = np.random.default_rng(seed).standard_normal(count).astype(np.float32)
    if dtype is not None:
        x = torch.from_numpy(x).to(dtype).float().numpy()
    return x


@pytest.mark.parametrize("block", [32, 64, 128, 256, 512, 1024, 2048, 4096])
def test_nf4_bytes_at_every_block_size(block):
    assert_same_bytes(normal(8 * 4096), block)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "block"), [(8 * 4096, 2048), (65, 64)])
def test_nf4_bytes_of_compiled_kernels(count, block):
    """In the other tests the operations run one by one."""
    assert_same_bytes(normal(count), block)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_nf4_bytes_on_values_of_16_bit_floats(dtype):
    # Coarse values meet the thresholds far more often than float32 ones.
    for seed in range(4):
        assert_same_bytes(normal(64 * 1000, seed, getattr(torch, dtype)))


@over("count", [1, 2, 3, 7, 63, 64, 65, 127, 129, 1000, 4095, 4097])
def test_nf4_bytes_with_short_last_blocks_and_odd_counts(count):
    assert_same_bytes(normal(count))
    assert_same_bytes(normal(count, dtype=torch.bfloat16))


def test_nf4_bytes_on_ties_at_every_threshold():
    thresholds = CodebookCoder(NF4_LEVELS, 64).thresholds
    around = [thresholds]
    for direction in (-np.inf, np.inf):
        around.append(np.nextafter(thresholds, np.float32(direction)))
    # absmax 1 keeps the values as they are; powers of two scale them without rounding.
    block = np.concatenate([*around, np.zeros(64 - 3 * 15 - 1), [1.0]]).astype(np.float32)
    for factor in (1.0, 0.25, -8.0, 3.0, 1e-3):
        assert_same_bytes(np.tile(block * np.float32(factor), 3))


def test_nf4_bytes_of_zeros_and_tiny_values():
    x = normal(64 * 12).reshape(12, 64)
    x[3] = 0
    x[4] *= 1e-38
    x[5] *= 1e-42
    x[6] = -0.0
    x[7] *= 1e37
    assert_same_bytes(x.reshape(-1))
    assert_same_bytes(np.zeros(200, np.float32))
    assert_same_bytes(np.zeros(40, np.float32))
    assert_same_bytes((normal(40) * 1e-40).astype(np.float32))


def test_nf4_of_bfloat16_tensors_without_conversion():
    tensor = torch.from_numpy(normal(64 * 99)).to(torch.bfloat16)
    packed, state = functional.quantize_4bit(tensor, quant_type="nf4")
    ours = quantize(tensor, Scheme.parse("nf4"))
    np.testing.assert_array_equal(ours.codes, packed.numpy())
    np.testing.assert_array_equal(ours.scales, state.absmax.float().numpy())


def test_nf4_of_a_matrix_is_that_of_its_elements_in_order():
    x = normal(50 * 70).reshape(50, 70)
    flat = quantize(x.reshape(-1), Scheme.parse("nf4"))
    matrix = quantize(x, Scheme.parse("nf4"))
    np.testing.assert_array_equal(matrix.codes, flat.codes)
    np.testing.assert_array_equal(matrix.dequantize().reshape(-1), flat.dequantize())


def test_levels_are_the_published_ones():
    np.testing.assert_array_equal(NF4_LEVELS, functional.get_4bit_type("nf4", device="cpu").numpy())
    np.testing.assert_array_equal(FP4_LEVELS, functional.get_4bit_type("fp4", device="cpu").numpy())
    assert NF4_LEVELS[7] == 0
    assert NF4_LEVELS[15] == 1


@pytest.mark.parametrize("count", [64 * 500, 1000, 37])
def test_fp4_values_equal(count):
    # Codes differ between CPU and CUDA at ties and in the sign of zero; values are promised.
    for x in (normal(count), normal(count, dtype=torch.bfloat16)):
        packed, state = theirs(x, "fp4")
        expected = functional.dequantize_4bit(packed, state).numpy().reshape(-1)[:count]
        ours = quantize(x, Scheme.parse("fp4"))
        np.testing.assert_array_equal(ours.dequantize(), expected)
        np.testing.assert_array_equal(ours.scales, state.absmax.numpy())


# Double quantization


def test_dynamic_map_is_theirs():
    np.testing.assert_array_equal(dynamic_map(), functional.create_dynamic_map().numpy())


def test_halfway_between_two_entries_of_the_map_is_the_lower_one():
    table = dynamic_map()
    halfway = (table[:-1] + table[1:]) / np.float32(2)
    np.testing.assert_array_equal(table[nearest_codes(halfway)], table[:-1])


def nested_by_brute_force(absmax, offset):
    """The nearest entry of the map in exact arithmetic, for each block of 256."""
    table = dynamic_map().astype(np.float64)
    codes, constants = [], []
    for start in range(0, absmax.size, NESTED_BLOCK):
        deviation = (absmax[start : start + NESTED_BLOCK] - np.float32(offset)).astype(np.float32)
        largest = np.abs(deviation).max()
        constants.append(largest)
        scaled = (deviation * (np.float32(1) / largest)).astype(np.float64)
        codes.append(np.abs(scaled[:, None] - table).argmin(axis=1))
    return np.concatenate(codes), np.array(constants, np.float32)


def test_nested_codes_are_the_nearest_of_the_map():
    x = normal(64 * 1000)
    q = quantize(x, Scheme.parse("nf4:dq"))
    single = quantize(x, Scheme.parse("nf4"))
    np.testing.assert_array_equal(q.codes, single.codes)
    codes, constants = nested_by_brute_force(single.scales, q.nested.offset)
    np.testing.assert_array_equal(q.nested.codes, codes)
    np.testing.assert_array_equal(q.nested.absmax, constants)
    np.testing.assert_array_equal(q.scales, q.nested.dequantize())
    assert q.nested.offset == pytest.approx(single.scales.mean(dtype=np.float64), rel=1e-7)


def test_double_quantization_reads_as_bitsandbytes_reads_it():
    """Given our nested codes and constants, bitsandbytes gives our values."""
    x = normal(64 * 700)
    ours = quantize(x, Scheme.parse("nf4:dq"))
    packed, state = theirs(x, compress_statistics=True)
    np.testing.assert_array_equal(ours.codes, packed.numpy())
    state.absmax = torch.from_numpy(ours.nested.codes)
    state.state2.absmax = torch.from_numpy(ours.nested.absmax)
    state.offset = torch.tensor(ours.nested.offset)
    dequantized = functional.dequantize_4bit(packed, state).numpy().reshape(-1)
    np.testing.assert_array_equal(ours.dequantize(), dequantized)


def test_bitsandbytes_misses_the_nearest_nested_code_on_the_cpu():
    """A known difference: its CPU kernel rounds by a uniform table of 65,536 entries. Codes differ
    by at most one, constants and offset at most in the last bit."""
    x = normal(64 * 4000)
    ours = quantize(x, Scheme.parse("nf4:dq"))
    _, state = theirs(x, compress_statistics=True)
    assert float(state.offset) == pytest.approx(ours.nested.offset, rel=2e-7)
    np.testing.assert_allclose(state.state2.absmax.numpy(), ours.nested.absmax, rtol=1e-5)
    difference = ours.nested.codes.astype(int) - state.absmax.numpy()
    assert np.abs(difference).max() <= 1
    assert 0 < np.count_nonzero(difference) < 0.01 * difference.size


@pytest.mark.parametrize("count", [195, 130])
def test_the_offset_is_the_mean_of_the_scales_that_are_kept(count):
    """The scale of a short last block is at least 1e-38, and counts so in the mean."""
    for x in (np.zeros(count, np.float32), normal(count) * np.float32(1e-40)):
        ours = quantize(x, Scheme.parse("nf4:dq"))
        _, state = theirs(x, compress_statistics=True)
        assert ours.nested.offset == pytest.approx(float(state.offset), rel=1e-6)


def test_one_block_alone_keeps_its_scale_exactly():
    x = normal(50)
    double, single = (quantize(x, Scheme.parse(text)) for text in ("nf4:dq", "nf4"))
    assert double.nested.absmax == [0]
    np.testing.assert_array_equal(double.scales, single.scales)
