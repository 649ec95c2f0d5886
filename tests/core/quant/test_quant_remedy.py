"""Advice names possible schemes that save bits, and following it lowers the error."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from every import in_parts, left_out, over
from shorthands import code_occupancy

from qtui_core.errors import UsageError
from qtui_core.models import open_model
from qtui_core.models.files.arrays import read_float32
from qtui_core.quant import (
    Scheme,
    bits_per_parameter,
    explain,
    find_outliers,
    gaussian_relative_mse,
    measure,
    statistics,
)
from qtui_core.quant.contest import Contender, verdict

SCHEMES = [
    "int2", "int2:full", "int2:signed", "int3:column", "int4", "int4:asym", "int4:tensor",
    "int4:row", "int4:group128", "int4:group32", "int4:model", "int4:block128:signed", "int8",
    "int8:tensor", "int8:group64", "int8:column", "int8:row:asym", "nf4", "nf4:block256", "nf4:dq",
    "fp4", "e2m1", "e2m1:tensor", "e4m3", "e5m2", "e4m3:row", "bf16", "fp16", "tf32",
]  # fmt: skip


def tensors():
    random = np.random.default_rng(5)
    normal = random.standard_normal((200, 256))
    columns = normal.copy()
    columns[:, [7, 100]] *= 30
    one = normal.copy()
    one[3, 4] = 60
    few = normal.copy()
    few.flat[random.choice(normal.size, 20, replace=False)] = 25
    many = normal.copy()
    many.flat[random.choice(normal.size, 1000, replace=False)] = 25
    return {
        "normal": normal,
        "columns": columns,
        "one outlier": one,
        "few outliers": few,
        "many outliers": many,
        "laplace": random.laplace(size=normal.shape),
        "student": random.standard_t(2, normal.shape),
        "uniform": random.random(normal.shape) - 0.5,
        "positive": random.random(normal.shape),
        "rows": normal * np.geomspace(0.01, 1, 200)[:, None],
        "off centre": 10 + normal,
        "far below zero": -3 - np.abs(normal),
        "one value": np.full(normal.shape, 0.3),
        "one octave": 1 + 0.02 * random.random(normal.shape),
        "sparse": normal * (random.random(normal.shape) < 0.3),
        "two values": np.sign(normal) * np.where(random.random(normal.shape) < 0.5, 0.5, 1),
        "small": normal * 1e-7,
        "denormal": normal * 1e-40,
        "vector": normal.reshape(-1),
        "narrow": normal.reshape(-1, 16),
    }


TENSORS = tuple(tensors())


@pytest.fixture(scope="module")
def looked_at():
    """Each tensor with its statistics and outliers."""
    found = {}
    for name, x in tensors().items():
        single = x.astype(np.float32)
        stats = statistics(single)
        found[name] = single, stats, find_outliers(single, stats)
    return found


def db(x, text):
    found = measure(x, Scheme.parse(text)).sqnr_db
    return np.inf if found is None else found


NAMED = re.compile(r"\b((?:u?int\d|nf4|fp4|e\dm\d)(?::\w+)+|bf16|fp16|tf32)")


@in_parts(3)
@over("name", TENSORS)
@over("text", SCHEMES)
def test_what_is_advised_helps(looked_at, name, text, parts):
    if left_out(parts, (name, TENSORS), (text, SCHEMES)):
        return
    x, stats, outliers = looked_at[name]
    said = explain(measure(x, Scheme.parse(text)), stats, outliers)
    before = db(x, text)
    _, found, advice = said.partition("; ")
    if not found:
        assert "exactly" in said or "within the rounding" in said or "beyond" in said
        return
    for scheme in NAMED.findall(advice):
        assert db(x, scheme) > before, said
        expected = re.search(rf"{scheme}\b.* would give a Gaussian ([\d.]+) dB", advice)
        if expected:
            sigma = float(np.sqrt(np.square(x, dtype=np.float64).mean()))
            found = gaussian_relative_mse(Scheme.parse(scheme), x.shape, sigma=sigma)
            assert float(expected[1]) == pytest.approx(-10 * np.log10(found), abs=0.051)
    power = re.search(r"multiply it by (?:2\^)?(\d+) or more", advice)
    if power:
        factor = 2.0 ** int(power[1]) if "2^" in power[0] else float(power[1])
        scaled = measure((x * np.float64(factor)).astype(np.float32), Scheme.parse(text))
        assert scaled.saturated == 0
        assert scaled.sqnr_db > scaled.gaussian_sqnr_db - 1
        assert scaled.sqnr_db > before + 0.5
    if "those columns" in advice:
        assert "columns of" in said


def test_more_than_bits_and_groups_is_said_where_it_helps():
    """The error of another format of the same width on a Gaussian tensor is known."""
    x = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
    stats = statistics(x)
    better = {
        "int2": "int2:group64:signed would give a Gaussian 8.1 dB at the same 2.50 bits",
        "int4": "nf4:block64 would give a Gaussian 20.7 dB at the same 4.50 bits",
        "e5m2": "int8:tensor",
        "bf16": "fp16 would give a Gaussian 73.6 dB at the same 16.00 bits",
    }
    for text, part in better.items():
        assert part in explain(measure(x, Scheme.parse(text)), stats, find_outliers(x, stats))
    said = explain(measure(x, Scheme.parse("int8:group64")), stats)
    assert "smaller groups: int8:group32 would give a Gaussian 45.4 dB" in said
    for text in ("int4", "nf4", "e4m3", "int8", "bf16"):
        assert "only" not in explain(measure(x, Scheme.parse(text)), stats)


def test_integers_are_not_advised_for_what_only_floats_fit():
    x = np.random.default_rng(0).standard_normal((400, 512)).astype(np.float32)
    x[:, [7, 100]] *= 30
    stats = statistics(x)
    said = explain(measure(x, Scheme.parse("e4m3")), stats, find_outliers(x, stats))
    assert "as good as a Gaussian" in said
    assert "int8" not in said


def explain_measured(x, *texts, **options):
    stats = statistics(x)
    reports = [measure(x, Scheme.parse(t)) for t in texts]
    return explain(reports, stats, find_outliers(x, stats), **options)


@pytest.fixture(scope="module")
def heavy():
    x = np.random.default_rng(0).standard_t(2, (512, 512))
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def test_a_lossless_alternative_is_named(heavy):
    assert "bf16 would keep it exactly at 16.00 bits instead of 4.50 (measured)" in (
        explain_measured(heavy, "int4", "bf16")
    )
    assert "nf4:block64 would bring it from 15.2 to 18.1 dB at the same 4.50 bits" in (
        explain_measured(heavy, "int4", "bf16", "nf4")
    )


def test_decibels_are_weighed_against_the_bits_they_take(heavy):
    """int5 has 6 dB more for a bit, which is worth as much; nf4 has 3 more for none."""
    assert "nf4:block64 would bring it" in explain_measured(heavy, "int4", "int5:group64", "nf4")


def test_columns_are_kept_only_when_they_were_named():
    x = np.random.default_rng(0).laplace(size=(512, 1024)).astype(np.float32)
    for text in ("int4", "int4:group32", "int4:row", "nf4"):
        assert "column" not in explain_measured(x, text)
    x = np.random.default_rng(0).standard_normal((400, 512)).astype(np.float32)
    x[:, [7, 100]] *= 30
    for text in ("int4:group64", "int4:group32"):
        assert "keep those columns in 16 bits" in explain_measured(x, text)
        assert "keep those columns in 16 bits" in explain_measured(x, text, stored_bits=16.0)
        assert "keep those" not in explain_measured(x, text, stored_bits=8.0)


def test_the_coarsest_scale_that_confines_outliers_is_advised():
    """If few rows have an outlier, scales per row suffice; if every row has one, they do not."""
    random = np.random.default_rng(0)
    few = random.standard_normal((400, 512)).astype(np.float32)
    few[:20, 5] = 40
    everywhere = few.copy()
    everywhere[np.arange(400), random.integers(0, 512, 400)] = 40
    assert "int4:row would confine" in explain_measured(few, "int4:tensor")
    assert "int4:group128 would confine" in explain_measured(everywhere, "int4:tensor")
    assert db(few, "int4:row") > db(few, "int4:tensor") + 5
    assert db(everywhere, "int4:row") < db(everywhere, "int4:tensor") + 2


STORED_SCHEMES = [
    Scheme.parse(text)
    for text in (
        "nf4", "nf4:dq", "int4", "int4:asym", "int4:tensor", "int8", "int8:tensor", "int2:row",
        "e4m3", "e4m3:tensor", "mxfp4", "nvfp4", "fp16", "bf16:stochastic", "ternary",
        "int8:row:outliers6.0",
    )
]  # fmt: skip
SHAPES = ((1, 1), (1, 7), (64, 1), (1, 256), (3, 5), (40, 96))


def filled(shape: tuple[int, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    x = rng.standard_normal(shape)
    spiked = x.copy()
    spiked[:, 0] *= 60
    broken = x.copy()
    broken[0, -1] = np.nan
    made = {
        "normal": x,
        "constant": np.full(shape, 0.3),
        "zeros": np.zeros(shape),
        "broken": broken,
        "tiny": x * 1e-41,
        "small": x * 1e-7,
        "huge": x * 1e6,
        "spiked": spiked,
        "heavy": np.exp(3 * x),
        "off centre": x + 7,
    }
    return {name: values.astype(np.float32) for name, values in made.items()}


def named(sentence: str, subject: Scheme) -> set[Scheme]:
    """The schemes that a sentence names, except `subject` and its format."""
    found = set()
    sentence = sentence.replace("fp16, in which outlier columns are kept,", "")
    for word in re.findall(r"[a-z][a-z0-9-]*\d(?::[a-z0-9.]+)*|ternary[:a-z]*", sentence):
        if word.rstrip(".:") == subject.format:
            continue
        try:
            found.add(Scheme.parse(word.rstrip(".:")))
        except UsageError:
            continue
    return found - {subject}


def costly(x: np.ndarray, own: Scheme, sentence: str, stored: float) -> set[str]:
    """The schemes that a sentence names besides `own` and that take `stored` bits or more, and the
    bits that it mentions."""
    wrong = {
        str(scheme)
        for scheme in named(sentence, own)
        if bits_per_parameter(scheme, x.shape) >= stored
    }
    offered = re.findall(r"at (?:the same )?([\d.]+) bits(?! it saves)", sentence)
    return wrong | {bits for bits in offered if float(bits) >= stored}


def failures(x: np.ndarray, where: str, widths: tuple[float, ...]) -> list[str]:
    reports = [measure(x, scheme) for scheme in STORED_SCHEMES]
    stats = statistics(x)
    outliers = find_outliers(x, stats)
    found = []
    for at, report in enumerate(reports):
        rest = [*reports[:at], *reports[at + 1 :]]
        for stored in widths:
            for others in ([], rest):
                said = explain([report, *others], stats, outliers, stored_bits=stored)
                if wrong := costly(x, report.scheme, said, stored):
                    found.append(f"{where}, {stored:g} bits stored: {wrong} in: {said}")
    return found


@in_parts(3)
def test_no_remedy_takes_as_many_bits_as_what_is_stored(parts):
    found = []
    for at, shape in enumerate(SHAPES):
        for name, x in list(filled(shape).items())[at % parts :: parts]:
            found += failures(x, f"{name} {shape}", (8.0, 16.0))
    assert found == []


@pytest.mark.slow
def test_no_remedy_takes_as_many_bits_as_what_the_demo_stores():
    found = []
    with open_model("demo") as source:
        for name, info in source.tensors.items():
            x = read_float32(source, name).reshape(info.matrix)
            found += failures(x, name, (8 * info.nbytes / info.elements,))
    assert found == []


def test_no_scheme_that_saves_nothing_wins_among_codebooks():
    found = []
    for shape in SHAPES:
        for name, x in filled(shape).items():
            if name in ("zeros", "broken"):
                continue
            schemes = [Scheme.parse(t) for t in ("nf4", "int4:group32", "nf4:block32:dq", "nvfp4")]
            contenders = [Contender(measure(x, s), code_occupancy(x, s)) for s in schemes]
            for stored in (4.3, 8.0, 16.0):
                said = verdict(contenders, statistics(x), stored_bits=stored)
                costs = [c.bits for c in contenders if c.bits >= stored]
                if len(costs) == len(contenders):
                    if "leave this tensor as it is" not in said:
                        found.append(f"{name} {shape} {stored}: {said}")
                    continue
                told, _, rest = said.rpartition("Of the rest: ")
                counted = not costs or told.startswith(f"{len(costs)} scheme")
                if not counted or costly(x, schemes[0], rest, stored):
                    found.append(f"{name} {shape} {stored}: {said}")
    assert found == []
