"""Speed of quantization as ratios to the libraries, in one run on the same bytes.

pytest -m bench tests/bench -s

bitsandbytes and torchao use as many threads as there are cores, qtui two at most.
"""

import numpy as np
import pytest
from lazy_imports import LazyImport

from qtui_core.job import Job
from qtui_core.quant import Scheme, measure, quantize

torch = LazyImport("torch")
functional = LazyImport("bitsandbytes.functional")
primitives = LazyImport("torchao.quantization.quant_primitives")
ml_dtypes = LazyImport("ml_dtypes")

pytestmark = pytest.mark.bench

ONE_THREAD = Job(threads=1)


def test_nf4_quantize(weights, table):
    flat = weights.tensor.reshape(-1)
    scheme = Scheme.parse("nf4")
    ratios = table.race(
        {
            "bitsandbytes quantize_4bit": lambda: functional.quantize_4bit(flat, quant_type="nf4"),
            "nf4 quantize": lambda: quantize(weights.tensor, scheme),
            "nf4 quantize, one thread": lambda: quantize(weights.tensor, scheme, job=ONE_THREAD),
        },
        "bitsandbytes quantize_4bit",
    )
    packed, state = functional.quantize_4bit(flat, quant_type="nf4")
    found = [quantize(weights.tensor, scheme, job=Job(threads=threads)) for threads in (None, 1, 2)]
    for q in found:
        assert np.array_equal(q.codes, packed.numpy())
        assert np.array_equal(q.scales, state.absmax.numpy())
    assert ratios["nf4 quantize"] >= 8


def test_nf4_dequantize(weights, table):
    flat = weights.tensor.float().reshape(-1)
    packed, state = functional.quantize_4bit(flat, quant_type="nf4")
    q = quantize(weights.array, Scheme.parse("nf4"))
    ours = np.empty_like(weights.array)
    ratios = table.race(
        {
            "bitsandbytes dequantize_4bit": lambda: functional.dequantize_4bit(packed, state),
            "nf4 dequantize": lambda: q.dequantize(),
            "nf4 dequantize, given array": lambda: q.dequantize(out=ours),
            "nf4 dequantize, given array, one thread": lambda: q.dequantize(out=ours, threads=1),
        },
        "bitsandbytes dequantize_4bit",
    )
    theirs = functional.dequantize_4bit(packed, state).numpy().reshape(weights.array.shape)
    assert np.array_equal(ours, theirs)
    assert np.array_equal(q.dequantize(threads=1), theirs)
    assert ratios["nf4 dequantize"] >= 1.2
    assert ratios["nf4 dequantize, given array"] >= 1.2


def test_int4_groups(weights, table):
    tensor = weights.tensor.float()
    block = (1, 64)

    def theirs():
        scale, zero = primitives.choose_qparams_affine(
            tensor, primitives.MappingType.SYMMETRIC, block, torch.int8, -7, 7
        )
        return primitives.quantize_affine(tensor, block, scale, zero, torch.int8, -7, 7)

    scheme = Scheme.parse("int4:group64")
    ratios = table.race(
        {
            "torchao affine, group 64": theirs,
            "int4:group64 quantize": lambda: quantize(weights.tensor, scheme),
            "int4:group64, one thread": lambda: quantize(weights.tensor, scheme, job=ONE_THREAD),
        },
        "torchao affine, group 64",
        rounds=9,
    )
    expected = theirs().numpy()
    for threads in (1, 2):
        assert np.array_equal(
            quantize(weights.array, scheme, job=Job(threads=threads)).codes, expected
        )
    assert ratios["int4:group64 quantize"] >= 5


def test_e4m3(weights, table):
    """ml_dtypes only casts; qtui also scales, which takes a second pass over the tensor."""
    scheme = Scheme.parse("e4m3")
    ratios = table.race(
        {
            "ml_dtypes float8_e4m3fn": lambda: weights.array.astype(ml_dtypes.float8_e4m3fn),
            "e4m3 quantize": lambda: quantize(weights.tensor, scheme),
            "e4m3 quantize, one thread": lambda: quantize(weights.tensor, scheme, job=ONE_THREAD),
        },
        "ml_dtypes float8_e4m3fn",
    )
    q = quantize(weights.tensor, scheme)
    expected = (weights.array / q.scales[0]).astype(ml_dtypes.float8_e4m3fn)
    assert np.array_equal(q.codes, expected.view(np.uint8))
    assert ratios["e4m3 quantize"] >= 2


@pytest.mark.parametrize(
    "text",
    ["nf4", "nf4:dq", "int4:group64", "int4:asym", "int8:row", "e4m3", "bf16", "mxfp4", "nvfp4"],
)
def test_measuring_costs_little_more_than_quantizing(weights, table, text):
    scheme = Scheme.parse(text)
    ratios = table.race(
        {
            f"{text} quantize": lambda: quantize(weights.tensor, scheme),
            f"{text} measure": lambda: measure(weights.tensor, scheme),
        },
        f"{text} quantize",
        rounds=9,
    )
    assert ratios[f"{text} measure"] >= 1 / 2.5
