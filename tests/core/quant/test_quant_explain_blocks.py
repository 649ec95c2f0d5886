"""Sentences about mx formats, nvfp4 and ternary name true causes and possible schemes."""

from __future__ import annotations

import numpy as np
from every import over
from scheme_table import EVERY_SCHEME

from qtui_core.quant import Scheme, explain, find_outliers, measure, statistics
from qtui_core.quant.case import finer_schemes, same_bits

SCHEMES = ["mxfp4", "mxfp6-e3m2:even", "mxfp8-e4m3", "mxint8:ceil", "nvfp4", "ternary", "e3m0"]


def tensors():
    random = np.random.default_rng(41)
    normal = random.standard_normal((128, 256)).astype(np.float32)
    one, column = normal.copy(), normal.copy()
    one[5, 7], column[:, 9] = 300, column[:, 9] * 60
    return {
        "normal": normal,
        "one outlier": one,
        "a column": column,
        "heavy tails": random.standard_t(3, normal.shape).astype(np.float32),
        "no tails": random.uniform(-1, 1, normal.shape).astype(np.float32),
        "small": normal * np.float32(1e-8),
        "sparse": normal * (random.random(normal.shape) < 0.1),
    }


def sentence(x, *texts):
    stats = statistics(x)
    reports = [measure(x, Scheme.parse(text)) for text in texts]
    return explain(reports, stats, find_outliers(x, stats))


@over("any_scheme", EVERY_SCHEME)
def test_candidates_are_possible_for_every_scheme(any_scheme):
    scheme = Scheme.parse(any_scheme)
    for found in [*same_bits(scheme), *finer_schemes(scheme, (300, 500))]:
        assert Scheme.parse(str(found)) == found
        assert found.bits == scheme.bits


def test_formats_of_one_granularity_get_no_finer_one():
    for text in ("mxfp4", "nvfp4", "mxint8:rceil", "int8:column"):
        assert list(finer_schemes(Scheme.parse(text), (300, 500))) == []


def test_groups_of_rows_are_not_advised_instead_of_columns():
    """Groups of a row would mix outlier columns with others; scales per column do not."""
    x = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)
    x[:, [7, 300]] *= 40
    report = measure(x, Scheme.parse("int8:column:asym"))
    assert report.sqnr_db > measure(x, Scheme.parse("int8:group64:asym")).sqnr_db + 1
    assert "group" not in explain(report, statistics(x), find_outliers(x))


def test_candidates_cost_what_8_bit_scales_cost():
    assert Scheme.parse("nf4:block128") in list(same_bits(Scheme.parse("mxfp4")))
    assert Scheme.parse("int4:group64") in list(same_bits(Scheme.parse("nvfp4")))
    assert Scheme.parse("mxfp4:even") in list(same_bits(Scheme.parse("int4:group128")))
    assert Scheme.parse("ternary:row") in list(same_bits(Scheme.parse("int2:row")))


def test_ternary_scales_have_a_floor():
    found = sentence(tensors()["small"], "ternary")
    assert "1e-5 or more, and every value became 0" in found
    assert "multiply it by" in found
