"""What is said of an error: true causes, and advice that is possible, saves bits and helps."""

import re

import ml_dtypes
import numpy as np
import pytest
from every import every, in_parts, left_out, over
from scheme_table import EVERY_PAIR, EVERY_SCHEME
from told_truly import faults_of

from qtui_core.errors import UsageError
from qtui_core.quant import (
    Scheme,
    bits_per_parameter,
    explain,
    find_outliers,
    gaussian_relative_mse,
    measure,
    statistics,
)
from qtui_core.quant.case import finer_schemes, same_bits


def tensors(shape):
    """Read-only tensors by what is unusual about them."""
    random = np.random.default_rng(5)
    normal = random.standard_normal(shape)

    def changed(count, value):
        x = normal.copy()
        x.flat[random.choice(x.size, min(count, x.size), replace=False)] = value
        return x

    columns = normal.copy()
    columns[:, 7 % shape[1] :: 93] *= 30
    found = {
        "normal": normal,
        "columns": columns,
        "one outlier": changed(1, 60),
        "few outliers": changed(20, 25),
        "many outliers": changed(normal.size // 50, 25),
        "broken": changed(1, np.nan),
        "laplace": random.laplace(size=shape),
        "student": random.standard_t(2, shape),
        "heavy": np.exp(3 * normal),
        "uniform": random.random(shape) - 0.5,
        "positive": random.random(shape),
        "rows": normal * np.geomspace(0.01, 1, shape[0])[:, None],
        "off centre": 10 + normal,
        "far below zero": -3 - np.abs(normal),
        "one value": np.full(shape, 0.3),
        "one octave": 1 + 0.02 * random.random(shape),
        "sparse": normal * (random.random(shape) < 0.3),
        "two values": np.sign(normal) * np.where(random.random(shape) < 0.5, 0.5, 1),
        "zeros": np.zeros(shape),
        "small": normal * 1e-7,
        "denormal": normal * 1e-40,
        "huge": normal * 1e6,
    }
    return {name: x.astype(np.float32) for name, x in found.items()}


def sentence(x, *texts, outliers=True, model_absmax=None, **how):
    stats = statistics(x)
    reports = [measure(x, Scheme.parse(text), model_absmax=model_absmax) for text in texts]
    return explain(reports, stats, find_outliers(x, stats) if outliers else None, **how)


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def in_columns(*columns, factor=30):
    x = normal(400, 512)
    x[:, columns] *= factor
    return x


def spiked(value, *shape):
    x = normal(*shape)
    x[3, 5] = value
    return x


def scattered():
    random = np.random.default_rng(0)
    x = random.standard_normal((1024, 4096)).astype(np.float32)
    x.flat[random.choice(x.size, 10, replace=False)] = 20
    return x


def rows_hit(count, columns=5):
    """Outliers in one column of the first rows, or anywhere in `count` rows."""
    x = normal(400, 512)
    x[np.arange(count), np.random.default_rng(0).integers(0, columns, count)] = 40
    return x


def heavy():
    x = np.random.default_rng(0).standard_t(2, (512, 512))
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


LAPLACE = np.random.default_rng(0).laplace(size=(512, 1024)).astype(np.float32)
UNIFORM = np.random.default_rng(0).random((300, 300)).astype(np.float32) - np.float32(0.5)
USUAL = "as good as a Gaussian"
NAN = "find out where"
#: (tensor, schemes, what is said, what is not said): the first scheme is explained, the others are
#: measured alternatives. A part that begins with ^ begins the sentence.
STATES = [
    (normal(512, 512), "nf4", "as good as a Gaussian tensor|20.7 dB", "only"),
    (np.empty((0, 4)), "nf4", "no elements", ""),
    (np.zeros((4, 4)), "nf4", "Every element is zero", ""),
    (np.ones((4, 4)), "bf16", "keeps every element", ""),
    (np.array([[np.nan, 1.0]]), "nf4", f"^1 element is NaN or infinite: {NAN} it comes", "they"),
    (np.full((2, 3), np.inf), "int8:row",
     f"6 elements are NaN or infinite: {NAN} they come from first; no element is finite, so there "
     "is nothing to measure.", "finite rest"),
    # What is exact.
    (normal(3000, 1), "int8:row", "within the rounding of float32", ""),
    (normal(64, 1) * np.float32(1e-40), "int8:row",
     "^int8:row gives 0.0 dB, where Gaussian values of this shape are kept|every value became 0",
     "keeps every element|-0.0"),
    (spiked(3e38, 32, 64), "int4:group64",
     "1 element weighs more than all others together", "keeps every element"),
    (np.eye(1, 512), "nf4:dq", "keeps every element", "%"),
    (np.array([[0.7]]), "mxfp6-e3m2:rceil", "its one value lies between two levels",
     "largest magnitude"),
    # Few elements with most of the energy.
    (spiked(1e6, 8, 64), "int4:tensor", "holds 99% of its energy", "100%"),
    (spiked(1e4, 400, 512), "int8:row",
     "1 element beyond 6 sigma holds 99% of its energy|so this figure is mostly about it", ""),
    # Spread.
    (LAPLACE, "int4:row", "tails are heavy|kurtosis", "column"),
    (UNIFORM, "int4:tensor", "better than on Gaussian|almost no tails", ""),
    (normal(256, 256) * np.linspace(0.5, 2, 256)[:, None], "int4:tensor", "worse", ""),
    # Casts.
    (normal(512, 512) * np.float32(1e-7), "fp16", "dB worse here than on Gaussian values", USUAL),
    (normal(512, 512) * np.float32(1e-7), "bf16", USUAL, ""),
    (spiked(129.49 * 50, 512, 512) * np.float32(0.02), "bf16", "further from the levels of bf16",
     "scale"),
    (normal(10, 10) * 1e6, "fp16", "beyond the largest number of fp16", ""),
    (normal(10, 10) * 1e6, "fp16 bf16", "bf16 would bring it from", ""),
    (normal(512, 512), "bf16", "fp16 would give a Gaussian 73.6 dB at the same 16.00 bits", ""),
    # Scales.
    (normal(128, 256) * np.float32(1e-8), "ternary",
     "too small for a scale, and every value became 0|multiply it by", ""),
    # Outliers.
    (in_columns(7, 100), "int4:row", "2 columns of 512 have 100% of them", ""),
    (in_columns(7, 100), "nf4", "2 columns of 512 have 100% of them|keep those columns in 16", ""),
    (in_columns(7, 100), "e4m3", USUAL, "int8"),
    (in_columns(7, 300, factor=40), "int8:column:asym", "", "group"),  # which mix the columns
    (in_columns(7), "int8:tensor:outliers6", "1 column of 512 is kept in 16 bits", ""),
    (normal(400, 512), "int8:row:outliers6", USUAL, ""),
    (scattered(), "int8:tensor", "10 elements beyond 6 sigma stretch its scale;", "column"),
    (scattered(), "int4", USUAL, ""),  # ten groups among 65,536
    (rows_hit(20, 1), "int4:tensor", "int4:row would confine", ""),
    (rows_hit(400, 512), "int4:tensor", "int4:group128 would confine", "int4:row"),
    # Other formats of the same width.
    (normal(512, 512), "int2", "int2:group64:signed would give a Gaussian 8.1 dB at the same 2.50",
     ""),
    (normal(512, 512), "int4", "nf4:block64 would give a Gaussian 20.7 dB at the same 4.50",
     "only"),
    # Measured alternatives.
    (heavy(), "int4 bf16", "bf16 would keep it exactly at 16.00 bits instead of 4.50 (measured)",
     ""),
    # int5 has 6 dB more for a bit, which is worth as much; nf4 has 3 more for none.
    (heavy(), "int4 int5:group64 nf4", "nf4:block64 would bring it", ""),
]  # fmt: skip


def test_the_sentence_of_every_state():
    def check(x, texts, said, never):
        found = sentence(np.asarray(x, np.float32), *texts.split())
        for part in filter(None, said.split("|")):
            assert found.startswith(part[1:]) if part[0] == "^" else part in found, found
        assert not any(part in found for part in never.split("|") if part), found
        assert not faults_of(found)

    every(STATES, check)


def test_a_report_alone_is_explained():
    assert USUAL in explain(measure(normal(512, 512), Scheme.parse("nf4")))
    # Without the largest value it is not known whether it fits.
    assert "fp16" not in explain(measure(normal(512, 512), Scheme.parse("bf16")))


@over(
    ("size", "extent", "said"),
    [
        (1e-5, 10.0, "too wide for this tensor, and every value became 0"),
        (1.0, 50.0, "too wide for this tensor; int8:tensor"),
        (1.0, 4.5, None),
    ],
)
def test_the_scale_of_a_model(size, extent, said):
    x = normal(256, 256) * np.float32(size)
    found = sentence(x, "int8:model", model_absmax=extent)
    assert f"scale of the model is {said}" in found if said else "scale of the model" not in found


def test_the_cure_of_outlier_columns_is_measured():
    x, texts = in_columns(7, 100), ("int4:row", "int4:group64", "int8:row")
    found = re.search(
        r"2 columns of 512.* from ([\d.]+) to ([\d.]+) dB at 4.50 bits .* \(measured\)",
        sentence(x, *texts),
    )
    for told, text in zip(found.groups(), texts, strict=False):
        assert float(told) == pytest.approx(db(x, text), abs=0.06)


@over("text", ["int4:group64", "int4:group32"])
def test_columns_are_kept_in_16_bits_of_a_tensor_that_has_them(text):
    x = in_columns(7, 100)
    assert "keep those columns in 16 bits" in sentence(x, text, stored_bits=16.0)
    assert "keep those" not in sentence(x, text, stored_bits=8.0)


@over(("text", "factor"), [("bf16", 3.4e38), ("fp16", 1e6)])
def test_saturation_is_cured_by_what_it_says(text, factor):
    x = np.clip(normal(10, 10), -1, 1) * np.float32(factor)
    divisor = int(re.search(r"divide the tensor by (\d+) or more first", sentence(x, text))[1])
    assert measure(x / divisor, Scheme.parse(text)).saturated == 0
    assert measure(x / divisor * 2, Scheme.parse(text)).saturated


@in_parts(20)
def test_every_scheme_has_one_sentence(awkward, parts):
    looked_at = []
    for x in awkward.values():
        stats = statistics(x)
        looked_at.append((x, stats, find_outliers(x, stats)))

    def check(text):
        scheme = Scheme.parse(text)
        step = max(parts, 3)
        for x, stats, outliers in looked_at[EVERY_PAIR.index(text) % step :: step]:
            said = explain(measure(x, scheme), stats, outliers)
            assert said.endswith(".")
            assert "\n" not in said
            assert said[0].isupper() or said[0].isdigit() or said.startswith(text[:4])
            assert not faults_of(said), said

    every(EVERY_PAIR, check)


# Causes are tested by taking them away


@over(("text", "smallest"), [("fp16", 2.0**-14), ("bf16", 2.0**-126)])
@over("size", [1.0, 0.3, 0.1, 0.01, 1e-3])
def test_subnormals_are_blamed_when_they_make_the_error(text, smallest, size):
    x = (normal(512, 512).astype(np.float64) * smallest * size).astype(np.float32)
    below = (np.abs(x) < smallest) & (x != 0)
    assert measure(x, Scheme.parse(text)).subnormal == np.count_nonzero(below)
    said = sentence(x, text)
    assert ("smallest normal number" in said) == ("worse here" in said)
    assert size > 0.3 or "smallest normal number" in said


def test_subnormals_without_a_share_in_the_error_are_not_blamed():
    x = (1 + 0.02 * np.random.default_rng(0).random((512, 512))).astype(np.float32)
    x[:, ::2] *= np.float32(1e-6)
    x[0] = 0
    assert measure(x, Scheme.parse("fp16")).subnormal == 511 * 256
    assert "smallest normal" not in sentence(x, "fp16")


@over("size", (1, 100, 40_000, 600_001))
def test_subnormals_are_counted_wherever_they_are(size):
    random = np.random.default_rng(0)
    x = (10.0 ** random.uniform(-9, 3, size)).astype(np.float32)
    x[random.random(size) < 0.1] = 0
    x[random.random(size) < 0.1] *= -1
    x[random.random(size) < 0.01] = np.nan
    below = (np.abs(x) < 2.0**-14) & (x != 0)
    for text, count in (("fp16", np.count_nonzero(below)), ("bf16", 0), ("int8:tensor", 0)):
        assert measure(x, Scheme.parse(text)).subnormal == count


@over("size", [1e-37, 1e-38, 1e-40, 1e-43])
@over("text", ["int8:row", "int8:row:asym", "int8:tensor", "int4", "nf4"])
def test_values_too_small_for_a_scale(text, size):
    x = (np.random.default_rng(0).standard_normal((64, 512)) * size).astype(np.float32)
    said = sentence(x, text)
    assert ("too small for a scale" in said) == ("worse here" in said)
    if size <= 1e-40:
        assert "too small for a scale" in said
        lost = measure(x, Scheme.parse(text)).relative_mse == 1.0
        assert ("every value became 0" in said) == lost


@over("text", ["int8:tensor", "int4:row", "int4", "nf4", "int8:row:asym", "e2m1"])
@over("count", [1, 30, 1000, 20_000])
@over("factor", [10, 100])
def test_outliers_are_blamed_when_the_tensor_is_better_without_them(text, count, factor):
    random = np.random.default_rng(count)
    x = random.standard_normal((512, 1024)).astype(np.float32)
    chosen = random.choice(x.size, count, replace=False)
    x.flat[chosen] = factor * np.sign(x.flat[chosen])
    stats = statistics(x)
    outliers = find_outliers(x, stats)
    report = measure(x, Scheme.parse(text))
    said = explain(report, stats, outliers)
    if "worse" not in said:
        return
    without = x.copy()
    without[np.abs(x) == factor] = 0
    rest = float(np.square(without, dtype=np.float64).mean())
    excess = report.mse - report.gaussian_relative_mse * rest
    saved = report.mse - measure(without, Scheme.parse(text)).mse
    if "stretch" in said:
        assert saved > excess / 3
    elif outliers.count:
        assert saved < excess / 1.2


@over("count", [1, 60])
@over("text", ["int4", "int4:row", "nf4", "int4:asym"])
def test_harmless_outliers_are_not_blamed(count, text):
    x = np.clip(np.random.default_rng(0).laplace(size=(1024, 1024)), -8, 8).astype(np.float32)
    x[:: 1024 // count, 0] = 9
    mse = [measure(y, Scheme.parse(text)).relative_mse for y in (x, np.where(x == 9, 0, x))]
    assert mse[1] == pytest.approx(mse[0], rel=0.03)
    assert "its tails are heavy" in sentence(x, text)


# Candidates


@over("any_scheme", EVERY_SCHEME)
def test_candidates_are_possible_for_every_scheme(any_scheme):
    scheme = Scheme.parse(any_scheme)
    for found in [*same_bits(scheme), *finer_schemes(scheme, (300, 500))]:
        assert Scheme.parse(str(found)) == found
        assert found.bits == scheme.bits


def test_candidates_of_one_granularity_and_of_8_bit_scales():
    for text in ("mxfp4", "nvfp4", "mxint8:rceil", "int8:column"):
        assert list(finer_schemes(Scheme.parse(text), (300, 500))) == []
    for text, same in (
        ("mxfp4", "nf4:block128"),
        ("nvfp4", "int4:group64"),
        ("int4:group128", "mxfp4:even"),
        ("int2:row", "ternary:row"),
    ):
        assert Scheme.parse(same) in list(same_bits(Scheme.parse(text)))


# Advice is followed

SCHEMES = [
    "int2", "int2:full", "int2:signed", "int3:column", "int4", "int4:asym", "int4:tensor",
    "int4:row", "int4:group128", "int4:group32", "int4:model", "int4:block128:signed", "int8",
    "int8:tensor", "int8:group64", "int8:column", "int8:row:asym", "nf4", "nf4:block256", "nf4:dq",
    "fp4", "e2m1", "e2m1:tensor", "e4m3", "e5m2", "e4m3:row", "bf16", "fp16", "tf32",
]  # fmt: skip
NAMED = re.compile(r"\b((?:u?int\d|nf4|fp4|e\dm\d)(?::\w+)+|bf16|fp16|tf32)")
TENSORS = tuple(tensors((1, 1)))


@pytest.fixture(scope="module")
def looked_at():
    """Each tensor with its statistics and outliers."""
    made = tensors((200, 256))
    return {name: (x, statistics(x), find_outliers(x)) for name, x in made.items()}


def db(x, text):
    found = measure(x, Scheme.parse(text)).sqnr_db
    return np.inf if found is None else found


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
        assert scaled.sqnr_db > max(scaled.gaussian_sqnr_db - 1, before + 0.5)
    if "those columns" in advice:
        assert "columns of" in said


STORED_SCHEMES = [
    Scheme.parse(text)
    for text in (
        "nf4", "nf4:dq", "int4", "int4:asym", "int4:tensor", "int8", "int8:tensor", "int2:row",
        "e4m3", "e4m3:tensor", "mxfp4", "nvfp4", "fp16", "bf16:stochastic", "ternary",
        "int8:row:outliers6.0",
    )
]  # fmt: skip
SHAPES = ((1, 1), (1, 7), (64, 1), (1, 256), (3, 5), (40, 96))


def costly(x, own, said, stored):
    """The schemes that a sentence names besides `own` and that take `stored` bits or more, and the
    bits that it mentions."""
    said = said.replace("fp16, in which outlier columns are kept,", "")
    wrong = set(re.findall(r"at (?:the same )?([\d.]+) bits(?! it saves)", said))
    wrong = {bits for bits in wrong if float(bits) >= stored}
    for word in re.findall(r"[a-z][a-z0-9-]*\d(?::[a-z0-9.]+)*|ternary[:a-z]*", said):
        word = word.rstrip(".:")
        try:
            scheme = Scheme.parse(word)
        except UsageError:
            continue
        if word != own.format and scheme != own and bits_per_parameter(scheme, x.shape) >= stored:
            wrong.add(word)
    return wrong


@in_parts(4)
@over("shape", SHAPES)
@over("name", TENSORS)
def test_no_remedy_takes_as_many_bits_as_what_is_stored(shape, name, parts):
    if left_out(parts, (shape, SHAPES), (name, TENSORS)):
        return
    x = tensors(shape)[name]
    reports = [measure(x, scheme) for scheme in STORED_SCHEMES]
    stats, outliers = statistics(x), find_outliers(x)
    for at, report in enumerate(reports):
        for stored in (8.0, 16.0):
            for others in ([], [*reports[:at], *reports[at + 1 :]]):
                said = explain([report, *others], stats, outliers, stored_bits=stored)
                assert not costly(x, report.scheme, said, stored), said
