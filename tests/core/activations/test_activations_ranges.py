"""Static and dynamic ranges, and the error of a layer's output, computed directly."""

from __future__ import annotations

import numpy as np
import pytest
from every import every, over
from lazy_imports import LazyImport
from told_truly import faults_of

from qtui_core.activations.observers import ActivationRecord, RangeRule
from qtui_core.activations.quantized import (
    as_written,
    columns_of,
    compare_ranges,
    conclude_output,
    conclude_ranges,
    output_errors,
    static,
    tokens_for,
    ways_of,
)
from qtui_core.errors import UsageError
from qtui_core.job import Cancelled, Job
from qtui_core.quant import Scheme, quantize

torch = LazyImport("torch")


def recording(
    seed: int, tokens: int = 300, features: int = 64, hot: float = 30.0
) -> ActivationRecord:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((tokens, features)) * rng.gamma(2, 1, (tokens, 1))).astype(np.float32)
    x[:, 11] *= hot
    x[:, 20] += 2
    return of_rows(x)


def of_rows(x: np.ndarray) -> ActivationRecord:
    record = ActivationRecord(x.shape[1], x.nbytes)
    record.add(x)
    return record


def sqnr(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x.astype(np.float64), y.astype(np.float64)
    return -10 * np.log10(((x - y) ** 2).sum() / (x**2).sum())


def symmetric(x: np.ndarray, scale: np.ndarray, highest: int) -> np.ndarray:
    """Symmetric quantization by definition, in float64."""
    return np.clip(np.rint(x.astype(np.float64) / scale), -highest, highest) * scale


def reports(text: str, first: ActivationRecord, second: ActivationRecord | None):
    ways = ways_of(Scheme.parse(text), first.observed)
    return {r.way.words: r for r in compare_ranges(ways, first, second)}


@pytest.mark.parametrize(("text", "highest"), [("int8:row", 127), ("int4:tensor", 7)])
def test_integers_by_definition(text: str, highest: int) -> None:
    first, second = recording(1), recording(2)
    found = reports(text, first, second)
    assert list(found) == ["per token", "per tensor", "min-max", "99.99%", "99.9%"]
    x, y = first.rows, second.rows
    clip = float(np.quantile(np.abs(x), 0.999, method="inverted_cdf"))
    for words, of_x, of_y in [
        ("per token", np.abs(x).max(axis=1, keepdims=True), np.abs(y).max(axis=1, keepdims=True)),
        ("per tensor", np.abs(x).max(), np.abs(y).max()),
        ("min-max", np.abs(x).max(), np.abs(x).max()),
    ]:
        report = found[words]
        for side, z, extent in ((report.calibration, x, of_x), (report.held_out, y, of_y)):
            expected = sqnr(z, symmetric(z, extent / highest, highest))
            assert side.sqnr_db == pytest.approx(expected, abs=2e-3)
        assert report.loss_db == report.calibration.sqnr_db - report.held_out.sqnr_db
    extent = found["99.9%"].way.extent
    assert extent is not None
    assert clip * (1 - 2**-10) <= extent[1] <= clip
    expected = sqnr(y, symmetric(y, extent[1] / highest, highest))
    assert found["99.9%"].held_out.sqnr_db == pytest.approx(expected, abs=2e-3)
    assert found["99.9%"].held_out.clipped == (np.abs(y) > np.float32(extent[1])).mean()
    assert found["99.9%"].calibration.clipped >= 1e-3 - 1 / x.size
    assert found["min-max"].calibration.clipped == 0


def test_an_asymmetric_range_is_two_sided() -> None:
    first, second = recording(1), recording(2)
    first = of_rows(np.abs(first.rows))
    found = reports("int8:row:asym", first, second)
    assert found["min-max"].way.extent == (float(first.rows.min()), float(first.rows.max()))
    x, high = first.rows.astype(np.float64), float(first.rows.max())
    step = high / 255
    expected = sqnr(x, np.clip(np.rint(x / step), 0, 255) * step)
    assert found["min-max"].calibration.sqnr_db == pytest.approx(expected, abs=2e-3)
    assert found["min-max"].held_out.clipped == ((second.rows < first.rows.min())
        | (second.rows > first.rows.max())).mean()  # fmt: skip


def test_small_floats_under_a_fixed_range_are_torch_s() -> None:
    first, second = recording(1), recording(2)
    found = reports("e4m3:tensor", first, second)["min-max"]
    assert found.held_out is not None
    scale = np.float32(np.abs(first.rows).max() / 448)
    y = torch.from_numpy(second.rows / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    expected = sqnr(second.rows, y.float().numpy() * scale)
    assert found.held_out.sqnr_db == pytest.approx(expected, abs=1e-3)


def test_bits_count_the_scales_that_are_made_on_the_fly() -> None:
    found = reports("int8:row", recording(1), None)
    assert [found[words].bits_per_value for words in ("per token", "min-max")] == [8 + 32 / 64, 8]
    assert (found["per token"].held_out, found["per token"].loss_db) == (None, None)


def test_other_formats_have_the_way_that_is_their_own() -> None:
    first = recording(1)
    for text, ways in {
        "nf4": ["per block64"],
        "bf16": ["a cast"],
        "mxfp4": ["per group32"],
    }.items():
        assert list(reports(text, first, None)) == ways
    assert next(iter(reports("int4:group32", first, None))) == "per group32"
    with pytest.raises(UsageError, match="no scale that could be fixed"):
        static(Scheme.parse("nf4"), RangeRule(), first.observed)


def test_ranges_stop_when_cancelled() -> None:
    first = recording(1)
    ways = ways_of(Scheme.parse("int8"), first.observed)
    with pytest.raises(Cancelled):
        list(compare_ranges(ways, first, None, Job(cancelled=lambda: True)))


# The output of a layer


@over("transposed", [False, True])
@over("biased", [False, True])
def test_the_output_error_is_brute_force_s(transposed: bool, biased: bool) -> None:
    rng = np.random.default_rng(4)
    x = recording(1).rows
    w = rng.standard_normal((48, 64)).astype(np.float32) * 0.05
    stored = np.ascontiguousarray(w.T) if transposed else w
    bias = rng.standard_normal(48).astype(np.float32) if biased else None
    schemes = [None, Scheme.parse("int4:group32"), Scheme.parse("nf4")]
    way = static(Scheme.parse("int8:tensor"), RangeRule(99.9), recording(1).observed)
    ways = [None, as_written(Scheme.parse("int8:row")), way]
    found = output_errors(x, stored, bias, schemes, ways, transposed=transposed)

    def exact(inputs: np.ndarray, weight: np.ndarray) -> torch.Tensor:
        side = torch.from_numpy(weight).double()
        y = torch.from_numpy(inputs).double() @ (side if transposed else side.T)
        return y if bias is None else y + torch.from_numpy(bias).double()

    y = exact(x, stored)
    for i, scheme in enumerate(schemes):
        used = stored if scheme is None else quantize(stored, scheme).dequantize()
        for j, chosen in enumerate(ways):
            inputs = x
            if chosen is not None:
                inputs = quantize(x, chosen.scheme, model_absmax=chosen.extent).dequantize()
            error = (exact(inputs, used) - y).square()
            cell = found[i][j]
            relative = float(error.sum() / y.square().sum())
            assert cell.relative_mse == pytest.approx(relative, rel=1e-5, abs=1e-30)
            np.testing.assert_allclose(
                cell.channel_squared_error, error.sum(0).numpy(), rtol=1e-4, atol=1e-12
            )
            if i or j:
                assert cell.channel_share.sum() == pytest.approx(1)
    assert found[0][0].relative_mse == 0
    assert found[0][0].sqnr_db is None
    assert not found[0][0].channel_share.any()


def test_small_errors_are_not_lost_in_the_output() -> None:
    """float32 outputs are exact to 1e-7 of their size; the error between them is computed more
    precisely."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((50, 256)).astype(np.float32)
    w = rng.standard_normal((32, 256)).astype(np.float32)
    scheme = Scheme.parse("tf32")
    cell = output_errors(x, w, np.full(32, 1e4, np.float32), [scheme], [None])[0][0]
    change = quantize(w, scheme).dequantize().astype(np.float64) - w
    y = x.astype(np.float64) @ w.T.astype(np.float64) + 1e4
    exact = ((x.astype(np.float64) @ change.T) ** 2).sum() / (y**2).sum()
    assert cell.relative_mse == pytest.approx(exact, rel=1e-5)
    assert 0 < exact < 1e-12


def test_tokens_that_are_not_finite_are_left_out() -> None:
    x = recording(1).rows.copy()
    w = np.ones((4, 64), np.float32)
    int8 = [as_written(Scheme.parse("int8:row"))]
    clean = output_errors(x[2:], w, None, [None], int8)[0][0]
    x[0, 3], x[1, 4] = np.nan, np.inf
    assert output_errors(x, w, None, [None], int8)[0][0].relative_mse == clean.relative_mse
    with pytest.raises(UsageError, match="finite"):
        output_errors(x[:2], w, None, [None], int8)
    with pytest.raises(Cancelled):
        output_errors(x, w, None, [None], int8, job=Job(cancelled=lambda: True))


def test_a_large_layer_takes_fewer_tokens() -> None:
    assert tokens_for((256, 704), 2048) == 2048
    assert tokens_for((4096, 14336), 2048) == (1 << 35) // (4096 * 14336)
    assert tokens_for((100_000, 20_000), 2048) == 17
    assert tokens_for((100_000, 20_000), 5) == 5


# What it means


def test_the_sentence_names_channels_numbers_and_what_to_do() -> None:
    first, second = recording(1), recording(2)
    found = list(reports("int8:row", first, second).values())
    columns = columns_of(first.observed)
    sentence = conclude_ranges("Input of down_proj", columns, found)
    ratio = np.abs(first.rows).max(axis=0)
    ratio = ratio[11] / np.median(ratio)
    held_out = found[0].held_out
    assert held_out is not None
    assert sentence.startswith(
        f"Input of down_proj: channel 11 of 64 reaches {ratio:.3g}x the median; int8 per token "
        f"keeps {held_out.sqnr_db:.1f} dB, a static min-max range "
    )
    assert ": use per token" in sentence


@over(
    ("text", "hot", "said"),
    [
        ("int8:row", 0, "no channel stands out"),
        ("int8:row", 0, "is enough, and costs nothing at run time"),
        ("int2:tensor", 30, "take a format with more bits"),
        ("nf4", 30, "needs no calibration, because its scales come from the values themselves"),
        ("bf16", 30, "needs no calibration, because a cast has no scales"),
    ],
)
def test_the_sentence_says_what_to_do(text: str, hot: float, said: str) -> None:
    first, second = recording(1), recording(2)
    if not hot:
        first = second = of_rows(np.sign(recording(1, hot=1.0).rows))
    found = list(reports(text, first, second).values())
    assert said in conclude_ranges("Input", columns_of(first.observed), found)


def one_channel(value: float) -> np.ndarray:
    return np.where(np.arange(16) == 2, np.full((40, 16), value), 0)


def with_nan(count: int) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((40, 16))
    x.reshape(-1)[:count] = np.nan
    return x


#: What is unusual -> the activation, the scheme, what is said of it, what must not be.
STATES = {
    "zeros": (np.zeros((40, 16)), "int8:token", "every value is zero", "stands out"),
    "one token": (np.ones((1, 16)), "nf4", "1 token cannot tell whether", "stands out (the"),
    "one channel": (one_channel(0.5), "bf16", "1 channel holds all of its values other than zero, "
                    "of 16 channels", "x the median"),
    "one NaN": (with_nan(1), "int8:token", "is NaN or infinite: find the layer that makes it "
                "first. Of the finite rest", "they"),
    "no number": (with_nan(640), "bf16", "640 values are NaN or infinite: find the layer that "
                  "makes them first; none is finite", "dB"),
    "nothing left": (np.full((40, 16), 1e-42), "int8:token", "nothing is left of it", "more bits"),
}  # fmt: skip


def test_the_sentence_of_every_state() -> None:
    def check(x: np.ndarray, text: str, said: str, never: str) -> None:
        record = of_rows(x.astype(np.float32))
        found, observed = reports(text, record, None).values(), record.observed
        sentence = conclude_ranges("Input", columns_of(observed), list(found), observed.nonfinite)
        assert said in sentence
        assert never not in sentence
        assert not faults_of(sentence)

    every(STATES, check)


def test_the_sentence_about_the_output_says_which_error_decides() -> None:
    random = np.random.default_rng(0).standard_normal((48, 64)).astype(np.float32)
    exact = np.linspace(-1, 1, 48 * 64, dtype=np.float32).reshape(48, 64)
    ones = np.ones((16, 64), np.float32)  # which BF16 holds
    for x, w, weights, activations, said in (
        (recording(1).rows, random, "int2:tensor", "int8:row", "the weights decide"),
        (recording(1).rows, random, "int8:row", "int4:tensor", "the activations decide"),
        (recording(1).rows, random, "int8:row", "int8:group16", "both count"),
        (ones, np.sign(exact), "bf16", "bf16", "exact, as are the weights and the activations."),
        (ones, exact, "bf16", "bf16", "activations alone exact): the weights decide"),
    ):
        schemes, ways = [None, Scheme.parse(weights)], [None, as_written(Scheme.parse(activations))]
        table = output_errors(x, w, None, schemes, ways)
        assert said in conclude_output("both", table[1][0], table[0][1], table[1][1])
