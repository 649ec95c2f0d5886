"""The expected codes of a Gaussian tensor, compared with the codes of Gaussian samples."""

import numpy as np
import pytest
from every import in_parts, left_out, over
from shorthands import code_occupancy

from qtui_core.quant import Scheme
from qtui_core.quant.levels import alphabet_of
from qtui_core.quant.occupancy import expected_shares

SHAPE = (1024, 512)
PARTS = 16
SCHEMES = [
    "nf4:block64", "nf4:block64:dq", "nf4:block16", "nf4:block4096", "fp4:block64", "fp4:block7",
    "int4:group64", "int4:row", "int4:column", "int4:tensor", "int4:tile64x64", "int4:group7",
    "int4:group64:signed", "int4:group64:asym", "int4:group16:asym", "int4:group3:asym",
    "int4:group2:asym", "int4:group1:asym", "int2:group64:asym", "int3:group64:asym",
    "int8:row", "int8:row:asym", "int2:group64", "e2m1:group64", "e3m0:group64", "e4m3:tensor",
    "mxfp4", "mxfp4:ceil", "mxfp4:even", "mxfp4:rceil", "mxint8", "mxfp6-e3m2", "nvfp4",
    "ternary", "ternary:row",
]  # fmt: skip


@pytest.fixture(scope="module")
def sample():
    return np.random.default_rng(3).standard_normal(SHAPE, dtype=np.float32)


@in_parts(2)
@over("text", SCHEMES)
def test_shares_of_a_sample(sample, text, parts):
    """The tolerance is four standard errors of the sample, which are larger for groups than for
    single elements, plus the error of the quadrature where a zero point jumps from node to node."""
    if left_out(parts, (text, SCHEMES)):
        return
    scheme = Scheme.parse(text)
    whole = text.endswith(("column", "tensor")) or text == "ternary"
    slack = {"int2:group64:asym": 1e-3}.get(text, 4e-4)
    found = code_occupancy(sample, scheme)
    expected = found.expected
    assert expected is not None
    assert expected.sum() == pytest.approx(1, abs=1e-9)
    assert (expected[~found.reachable] == 0).all()
    shares = found.counts / found.total
    if whole:
        error = np.full(shares.shape, 2e-3)  # one scale, which varies from tensor to tensor
        if text == "int4:column":
            error = np.full(shares.shape, 2e-4)
    else:
        parts = [code_occupancy(part, scheme) for part in np.split(sample, PARTS)]
        each = np.array([part.counts / part.total for part in parts])
        error = each.std(axis=0) / np.sqrt(PARTS)
    assert (np.abs(shares - expected) < 4 * error + slack).all(), np.abs(shares - expected).max()


def test_full_integers_put_the_lower_extreme_on_an_edge(sample):
    """-absmax lies between two codes; the rounding of the scale decides, and it becomes the outer
    one."""
    found = code_occupancy(sample, Scheme.parse("int4:group64:full"))
    assert np.abs(found.counts / found.total - found.expected).max() < 2.5e-3


@pytest.mark.parametrize("text", ["nf4:block64", "int4:group64:asym", "mxfp4", "nvfp4"])
def test_density_of_a_sample(sample, text):
    found = code_occupancy(sample, Scheme.parse(text))
    assert found.expected_density.sum() == pytest.approx(1, abs=1e-9)
    assert np.abs(found.density / found.total - found.expected_density).max() < 2e-3


def test_the_size_of_the_values_matters_for_powers_of_two_only(sample):
    for text, same in (("nf4", True), ("int4:group64:asym", True), ("mxfp4", False)):
        one, other = (
            expected_shares(Scheme.parse(text), SHAPE, sigma=sigma)[0] for sigma in (1.0, 0.7)
        )
        assert np.allclose(one, other, atol=1e-12) is same
    quarter = expected_shares(Scheme.parse("mxfp4"), SHAPE, sigma=0.25)[0]
    np.testing.assert_allclose(
        quarter, expected_shares(Scheme.parse("mxfp4"), SHAPE)[0], atol=1e-12
    )
    small = code_occupancy(sample * np.float32(0.7e-3), Scheme.parse("mxfp4"))
    assert np.abs(small.counts / small.total - small.expected).max() < 2e-3


def test_symmetric_levels_are_used_symmetrically():
    for text in ("int4:group64", "e2m1:group64", "int4:group64:asym", "mxfp4"):
        alphabet = alphabet_of(Scheme.parse(text))
        shares = expected_shares(Scheme.parse(text), SHAPE)[0][alphabet.reachable]
        np.testing.assert_allclose(shares, shares[::-1], atol=1e-9)


def test_unknown_shares_are_none():
    for text, shape in (("int8:row:outliers3", SHAPE), ("nf4", (0, 8))):
        assert expected_shares(Scheme.parse(text), shape) == (None, None)
