"""The bits by part, compared with arithmetic by hand and with the sizes of the stored arrays."""

from fractions import Fraction

import numpy as np
import pytest
from every import over

from qtui_core.quant import Scheme, bits_per_parameter, quantize, quantized_bytes
from qtui_core.quant.storage import bit_budget

LARGE = (4096, 4096)
SHAPES = [(4096, 4096), (100, 37), (3, 5, 70), (8, 3, 3, 3), (101,), (), (1, 1), (0, 8)]
SCHEMES = [
    "int2:group16:asym", "int3:row", "int4:group64", "int4:group33:asym", "int5:tensor",
    "int8:column:asym", "int4:model", "int4:group64:asym:zpfloat", "e2m1:group64", "e4m3:tile8x8",
    "nf4:block64", "nf4:block64:dq", "fp4:block33:dq7", "mxfp4", "mxfp6-e2m3", "nvfp4", "ternary",
    "bf16", "tf32", "int4:token",
]  # fmt: skip


def shares(text, shape=LARGE):
    budget = bit_budget(Scheme.parse(text), shape)
    return {part.name: budget.share(part) for part in budget.parts}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int4:group64", {"codes": 4, "scales": Fraction(1, 2)}),
        (
            "int4:group64:asym",
            {"codes": 4, "scales": Fraction(1, 2), "zero points": Fraction(1, 16)},
        ),
        ("mxfp4", {"codes": 4, "scales": Fraction(1, 4)}),
        (
            "nvfp4",
            {"codes": 4, "scales": Fraction(1, 2), "tensor scale": Fraction(32, 4096 * 4096)},
        ),
        ("bf16", {"codes": 16}),
        ("int8:row", {"codes": 8, "scales": Fraction(32, 4096)}),
    ],
)
def test_parts_by_hand(text, expected):
    assert shares(text) == expected


@over("shape", SHAPES)
@over("text", SCHEMES)
def test_parts_sum_to_the_bits_and_bytes_of_the_other_functions(text, shape):
    scheme = Scheme.parse(text)
    budget = bit_budget(scheme, shape)
    total = sum((budget.share(part) for part in budget.parts), Fraction(0))
    if np.prod(shape):
        assert total == budget.bits_per_parameter
        assert total == Fraction(8 * budget.bytes, int(np.prod(shape)))
    else:
        assert budget.bytes == 0
        assert budget.bits_per_parameter == scheme.bits
    assert float(budget.bits_per_parameter) == bits_per_parameter(scheme, shape)
    assert budget.bytes == quantized_bytes(scheme, shape)
    assert budget.overhead == budget.bits_per_parameter - scheme.bits


@pytest.mark.parametrize("text", ["nf4:block64", "nf4:block33", "int8:row", "int8:row:asym",
                                  "e4m3:group64", "nf4:block16:dq16", "bf16"])  # fmt: skip
def test_the_arrays_that_are_kept_are_as_large(text):
    x = np.random.default_rng(0).standard_normal((24, 192)).astype(np.float32)
    q = quantize(x, Scheme.parse(text))
    kept = q.codes.nbytes
    if q.nested is not None:
        kept += q.nested.codes.nbytes + q.nested.absmax.nbytes + 4
    else:
        kept += q.scales.nbytes
    if q.zero_points is not None:
        kept += q.zero_points.nbytes
    assert bit_budget(q.scheme, x.shape).bytes == kept


def test_columns_kept_in_16_bits_take_the_place_of_codes():
    """16 bits an element and 32 an index, and no code."""
    plain, kept = (bit_budget(Scheme.parse("int8:row"), (64, 128), n) for n in (0, 3))
    assert kept.bytes - plain.bytes == 3 * (64 * (2 - 1) + 4)
