"""Groups by the words of their definition, bits and bytes by hand and by what is stored."""

import math
from fractions import Fraction

import numpy as np
from every import over
from scheme_table import EVERY_SCHEME

from qtui_core.quant import Scheme, bits_per_parameter, quantize, quantized_bytes
from qtui_core.quant.layout import run_lengths, scale_index, scale_shape
from qtui_core.quant.storage import bit_budget

SHAPES = [(6, 70), (6, 64), (1, 130), (130, 1), (3, 4, 10), (2, 3, 5, 2), (101,), (1,), ()]
GRANULARITIES = [
    "model", "tensor", "row", "column", "group7", "group64", "block7", "block64", "token",
    "tile2x7", "tile4x4", "tile1x7", "tile5x1", "tile128x128", "tile3x1000", "tile1000x3",
]  # fmt: skip


def matrix_by_definition(shape):
    """Rows and columns from the words of the definition."""
    match shape:
        case (experts, out, features):
            return experts * out, features
        case (out, *rest) if rest:
            return out, math.prod(rest)
    return 1, math.prod(shape)


def groups_by_definition(granularity, shape):
    """The group of each element, from the words of the definition."""
    rows, columns = matrix_by_definition(shape)
    row, column = np.divmod(np.arange(rows * columns), columns)
    if granularity.startswith("tile"):
        height, width = map(int, granularity.removeprefix("tile").split("x"))
        return row // height * -(-columns // width) + column // width
    name = granularity.rstrip("0123456789")
    size = int(granularity[len(name) :] or 0)
    match name:
        case "model" | "tensor":
            return np.zeros(rows * columns, int)
        case "row":
            return row
        case "token":
            return np.arange(rows * columns) // (shape[-1] if shape else 1)
        case "column":
            return column
        case "group":
            return row * -(-columns // size) + column // size
        case "block":
            return (row * columns + column) // size
    raise AssertionError(name)


@over("shape", SHAPES)
@over("granularity", GRANULARITIES)
def test_groups_are_those_of_the_definition(granularity, shape):
    group = groups_by_definition(granularity, shape)
    scheme = Scheme.parse(f"int4:{granularity}")
    columns = matrix_by_definition(shape)[1]
    assert math.prod(scale_shape(scheme.granularity, shape)) == group.max() + 1
    for index in range(group.size):
        assert scale_index(scheme.granularity, shape, *divmod(index, columns)) == group[index]
    lengths = np.bincount(group)
    found = run_lengths(scheme.granularity, shape)
    assert found == {n: int((lengths == n).sum()) for n in set(lengths.tolist())}

    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    absmax = np.zeros(group.max() + 1, np.float32)
    np.maximum.at(absmax, group, np.abs(x).reshape(-1))
    q = quantize(x, scheme)
    np.testing.assert_array_equal(q.scales.reshape(-1), absmax / np.float32(7))
    last = divmod(group.size - 1, columns)
    assert q.scale_at(*last) == (float(absmax[group[-1]] / np.float32(7)), 0)


BITS = {
    "nf4": 4.5,
    "int4:group64:asym": 4.5625,  # 32 bits of scale and 4 of zero point
    "int4:group64:asym:zpfloat": 5.0,
    "int8:row": 8 + 32 / 4096,
    "int3:tensor": 3 + 32 / 2**24,
    "int3:model": 3.0,
    "bf16": 16.0,
    "mxfp4": 4.25,
    "mxint8": 8.25,
    "nvfp4": 4.5 + 32 / 2**24,
    "ternary": 2 + 32 / 2**24,
    "e4m3:tile128x128": 8 + 32 / 2**14,
    "int8:token": 8 + 32 / 4096,
    "nf4:dq128": 4 + 8 / 64 + 32 / (64 * 128) + 32 / 2**24,
    # 8 bits a block, 32 for 256 blocks, and 32 for the one offset of the tensor
    "nf4:dq": 4 + 8 / 64 + 32 / (64 * 256) + 32 / 2**24,
}


@over(("text", "bits"), BITS.items())
def test_bits_per_parameter_count_everything(text, bits):
    scheme, shape = Scheme.parse(text), (4096, 4096)
    assert bits_per_parameter(scheme, shape) == bits
    assert quantized_bytes(scheme, shape) == bits * 2**24 / 8


def test_bits_by_part_and_of_nothing():
    budget = bit_budget(Scheme.parse("int4:group64:asym"), (4096, 4096))
    expected = {"codes": 4, "scales": Fraction(1, 2), "zero points": Fraction(1, 16)}
    assert {part.name: budget.share(part) for part in budget.parts} == expected
    for text in ("nf4:dq", "int4:asym", "bf16"):
        scheme = Scheme.parse(text)
        assert quantized_bytes(scheme, (0, 64)) == 0
        assert bits_per_parameter(scheme, (0, 64)) == scheme.bits


@over("any_scheme", EVERY_SCHEME)
def test_storage_agrees_with_what_is_stored(any_scheme):
    scheme = Scheme.parse(any_scheme)
    x = np.random.default_rng(0).standard_normal((33, 70))
    q = quantize(x, scheme)
    scale_bytes = 0 if "model" in any_scheme else q.scales.nbytes
    if q.scale_codes is not None:
        scale_bytes = q.scale_codes.nbytes + (4 if q.tensor_scale is not None else 0)
    if q.nested is not None:
        scale_bytes = q.nested.codes.nbytes + q.nested.absmax.nbytes + 4
    zero_bits = 0
    if q.zero_points is not None and "model" not in any_scheme:
        zero_bits = q.zero_points.size * scheme.bits
    code_bits = x.size * scheme.bits
    assert q.nbytes == -(-code_bits // 8) + scale_bytes + -(-zero_bits // 8)
    assert q.bits_per_parameter == 8 * q.nbytes / x.size
    budget = bit_budget(scheme, x.shape)
    assert budget.bytes == q.nbytes
    assert budget.overhead == budget.bits_per_parameter - scheme.bits
    total = sum(map(budget.share, budget.parts), Fraction(0))
    assert total == budget.bits_per_parameter == Fraction(8 * q.nbytes, x.size)
