"""Divergence, loss and agreement of logits, windows of a text, and rows over windows: against
brute force, llama.cpp's formula and numpy."""

import math
from base64 import b64encode
from dataclasses import replace

import numpy as np
import pytest
from every import over
from lazy_imports import LazyImport

from qtui_core.errors import UsageError
from qtui_core.evaluation.conclude import beyond_chance
from qtui_core.evaluation.figures import TOKEN_SCORES
from qtui_core.evaluation.results import Candidate, EvaluatedText, EvaluationBegun, PartScored
from qtui_core.evaluation.settings import EvaluationSettings
from qtui_core.evaluation.summary import compare_candidates, summarize
from qtui_core.evaluation.windows import cut_windows

torch = LazyImport("torch")
score = LazyImport("qtui_core.evaluation.scores", "score")


def scores_of(q, p, targets):
    given = [None if x is None else torch.from_numpy(np.asarray(x, np.float32)) for x in (q, p)]
    return score(*given, torch.from_numpy(np.asarray(targets, np.int64)))


def by_hand(q: np.ndarray, p: np.ndarray, token: int) -> tuple[float, float, bool]:
    """(loss, divergence, agreement) of one token, with exact sums of Python's floats."""

    def log_probabilities(logits: np.ndarray) -> list[float]:
        most = float(logits.max())
        total = math.log(math.fsum(math.exp(float(x) - most) for x in logits))
        return [float(x) - most - total for x in logits]

    mine, theirs = log_probabilities(q), log_probabilities(p)
    divergence = math.fsum(math.exp(b) * (b - a) for a, b in zip(mine, theirs, strict=True))
    return -mine[token], divergence, mine.index(max(mine)) == theirs.index(max(theirs))


def llama_cpp(q: np.ndarray, p: np.ndarray, token: int) -> tuple[float, float, bool]:
    """The same as llama-perplexity computes it: the base's log probabilities in 16 bits over the
    16 nats below the most likely token, and none that is less likely than e^-16."""
    most, least = p.max(), max(p.min(), p.max() - 16)
    log_sum = math.log(np.exp((p - most).astype(np.float32)).sum(dtype=np.float64))
    scale = np.float32((most - least) / 65535)
    words = np.where(p > least, np.rint((p - least) / scale), 0)
    base = scale * words + (least - most - log_sum)
    shift = q.max() + math.log(np.exp((q - q.max()).astype(np.float32)).sum(dtype=np.float64))
    counted = base > -16
    divergence = float((np.exp(base) * (base - q + shift))[counted].sum())
    return float(shift - q[token]), divergence, int(q.argmax()) == int(base.argmax())


def test_scores_are_those_of_exact_sums_and_of_llama_cpp() -> None:
    rng = np.random.default_rng(0)
    p = (3 * rng.standard_normal((2, 40, 300))).astype(np.float32)
    q = (p + 0.3 * rng.standard_normal(p.shape)).astype(np.float32)
    targets = rng.integers(0, 300, (2, 40))
    found = scores_of(q, p, targets)
    for at in np.ndindex(2, 40):
        exact = by_hand(q[at], p[at], targets[at])
        close = llama_cpp(q[at], p[at], targets[at])
        mine = (found["loss"][at], found["divergence"][at], bool(found["agreement"][at]))
        assert mine[:2] == pytest.approx(exact[:2], rel=1e-6)
        assert mine[2] == exact[2] == close[2]
        assert mine[0] == pytest.approx(close[0], rel=1e-5)
        assert mine[1] == pytest.approx(close[1], rel=1e-3, abs=2e-4)


def test_equal_logits_differ_by_nothing_and_ties_go_to_the_first() -> None:
    rng = np.random.default_rng(1)
    p = rng.standard_normal((1, 50, 200)) * 20
    same = scores_of(p, p, np.zeros((1, 50)))
    assert not same["divergence"].any()
    assert same["agreement"].all()
    # A constant added to all logits changes no probability, but the last bits of the sums.
    moved = scores_of(p + 64.0, p, np.zeros((1, 50)))
    assert (moved["divergence"] >= 0.0).all()
    assert moved["divergence"].max() < 1e-5
    tied = scores_of([[[1.0, 2.0, 2.0]]], [[[0.0, 5.0, 1.0]]], [[0]])
    other = scores_of([[[1.0, 2.0, 2.0]]], [[[0.0, 1.0, 5.0]]], [[0]])
    assert (tied["agreement"].item(), other["agreement"].item()) == (1, 0)


def test_of_the_original_itself_there_is_only_a_loss() -> None:
    found = scores_of([[[0.0, math.log(3.0)]]], None, [[1]])
    assert found["loss"].item() == pytest.approx(-math.log(0.75))
    assert (found["divergence"].item(), found["agreement"].item()) == (0.0, 1)


INF = math.inf


@over(
    ("mine", "theirs", "divergence"),
    [
        ([0.0, 1.0, 7.0], [0.0, 1.0, -INF], math.log((1 + math.e + math.e**7) / (1 + math.e))),
        ([0.0, 1.0, -INF], [0.0, 1.0, -INF], 0.0),
        ([0.0, 1.0, -INF], [0.0, 1.0, 0.0], INF),
        ([0.0, math.nan, 0.0], [0.0, 1.0, 0.0], math.nan),
    ],
)
def test_a_token_that_is_impossible_counts_only_if_the_original_gives_it(
    mine, theirs, divergence
) -> None:
    found = scores_of([[mine]], [[theirs]], [[0]])["divergence"].item()
    assert found == pytest.approx(divergence, rel=1e-6, nan_ok=True)


class _Words:
    """A tokenizer with these special tokens before a text."""

    def __init__(self, *prefix: int) -> None:
        self.prefix = np.array(prefix, np.int64)


@over(
    "prefix, window, scored, count",
    [((), 64, "half", 5), ((7,), 64, "half", 5), ((7,), 64, "all", 99), ((), 33, "half", 1)],
)
def test_windows_are_llama_cpps(prefix, window, scored, count) -> None:
    """Position n/2 to n - 2 of n tokens are scored; the first token of a text stands before each
    window; windows do not overlap and are spread over the text."""
    ids = np.arange(100, 1100)
    settings = EvaluationSettings(window=window, scored=scored, windows=count)
    found = cut_windows(ids, _Words(*prefix), settings, None, 10**6)
    own = window - len(prefix)
    there = 1000 // own
    assert found.ids.shape == (min(count, there), window)
    assert found.available == 1000
    assert (found.ids[:, : len(prefix)] == list(prefix)).all()
    starts = found.ids[:, len(prefix)] - 100
    assert (starts % own == 0).all()
    assert (np.diff(starts) >= own).all()
    if count > 1:
        assert (starts[0], starts[-1]) == (0, (there - 1) * own)
    for row in found.ids[:, len(prefix) :]:
        assert (np.diff(row) == 1).all()
    assert found.scored == (window - 1 - window // 2 if scored == "half" else own - 1)
    assert len(set(found.digest)) > 1


def test_the_number_of_windows_follows_the_size_of_the_model() -> None:
    ids = np.zeros(100_000, np.int64)
    counts = [
        len(cut_windows(ids, _Words(), EvaluationSettings(), None, size).ids)
        for size in (10**5, 4_558_080, 8 * 10**9)
    ]
    assert counts == [64, 42, 16]


def test_a_text_shorter_than_a_window_is_one_window_and_a_few_tokens_are_none() -> None:
    settings = EvaluationSettings()
    short = cut_windows(np.arange(40), _Words(1), settings, None, 1)
    assert short.ids.shape == (1, 41)
    assert short.scored == 20
    limited = cut_windows(np.arange(400), _Words(1), settings, 32, 1)
    assert limited.ids.shape[1] == 32
    for count, more, limit, words in (
        (15, {}, None, "15 tokens: an evaluation needs"),
        (1, {}, None, "has 1 token:"),
        (400, {"window": 64}, 32, "the 32 tokens that the model takes at once"),
        (40, {"window": 64}, None, "The text has 40 tokens"),
        (400, {}, 1, "the model takes 1 at once"),
    ):
        with pytest.raises(UsageError, match=words):
            cut_windows(np.arange(count), _Words(), replace(settings, **more), limit, 1)


# Rows over windows


def begun_of(*names: str, batches: tuple[int, ...] = (2, 2), scored: int = 3) -> EvaluationBegun:
    text = EvaluatedText("a text", "a byte a token", 4096, "", 8, scored, sum(batches))
    return EvaluationBegun(
        "m", "LlamaForCausalLM", 1000, 2000, EvaluationSettings(), text,
        tuple(Candidate(name) for name in ("original", *names)), batches, "CPU",
    )  # fmt: skip


def part_of(begun, batch, candidate, divergence, loss=1.0, nbytes=500, agree=True) -> PartScored:
    """A part; numbers stand for all tokens, and an array is `[windows, scored]`."""
    shape = (begun.batches[batch], begun.text.scored)

    def text(values, dtype):
        return b64encode(np.broadcast_to(values, shape).astype(dtype).tobytes()).decode()

    return PartScored(
        batch, candidate, nbytes, text(loss, "<f4"),
        text(divergence, "<f4") if candidate else "", text(agree, "|u1"), 1.0,
    )  # fmt: skip


def parts_of(begun, *divergences, **more) -> list[PartScored]:
    """All parts, with the divergence of each candidate: float `[windows, scored]`."""
    found, start = [], 0
    for batch, size in enumerate(begun.batches):
        rows = slice(start, start + size)
        found.append(part_of(begun, batch, 0, 0.0, nbytes=2000))
        for number, values in enumerate(divergences, 1):
            whole = np.broadcast_to(values, (begun.text.windows, begun.text.scored))
            found.append(part_of(begun, batch, number, whole[rows], **more))
        start += size
    return found


def test_a_recording_from_before_a_score_goes_on_without_it(monkeypatch) -> None:
    later = replace(TOKEN_SCORES["agreement"], later=True)
    monkeypatch.setitem(TOKEN_SCORES, "agreement", later)
    begun = begun_of("a")
    first, *rest = parts_of(begun, 0.5)
    early = [replace(part, agreement="") for part in (first, rest[0])]
    _, rows, _ = compare_candidates(begun, [*early, *rest[1:]])
    assert [row.top1_agreement for row in rows] == [None, None]
    assert rows[1].kl_mean == 0.5


def test_rows_are_what_numpy_makes_of_all_tokens() -> None:
    begun = begun_of("a", batches=(3, 4), scored=50)
    rng = np.random.default_rng(2)
    values = rng.exponential(0.01, (7, 50)).astype(np.float32).astype(float)
    found = summarize(begun, parts_of(begun, values, loss=2.0), "done")
    original, row = found.rows
    assert (original.scheme, original.kl_mean, original.bits_per_parameter) == ("original", 0, 16)
    assert row.kl_mean == pytest.approx(values.mean())
    assert row.kl_median == pytest.approx(np.median(values))
    # llama.cpp: linear between the two tokens around place 0.999 (n - 1) of those in order
    place = 0.999 * (values.size - 1)
    low, share = int(place), place - int(place)
    ordered = np.sort(values.reshape(-1))
    expected = (1 - share) * ordered[low] + share * ordered[low + 1]
    assert row.kl_p999 == pytest.approx(expected)
    assert row.kl_stderr == pytest.approx(values.mean(1).std(ddof=1) / 7**0.5)
    assert (row.loss, row.perplexity) == (2.0, math.exp(2.0))
    assert (row.bits_per_parameter, row.nbytes, row.top1_agreement) == (4.0, 500, 1.0)
    assert (found.windows, found.tokens) == (7, 350)


def test_an_evaluation_in_progress_counts_whole_batches_only() -> None:
    begun = begun_of("a", "b")
    parts = parts_of(begun, 0.1, 0.2)
    assert summarize(begun, parts[:0]).rows == ()
    first = summarize(begun, parts[:2])
    assert ([r.scheme for r in first.rows], first.windows) == (["original", "a"], 2)
    assert [summarize(begun, parts[:n]).windows for n in (3, 4, 5, 6)] == [2, 2, 2, 4]
    assert [r.scheme for r in summarize(begun, parts[:5]).rows] == ["original", "a", "b"]


def test_what_is_not_finite_is_counted_and_has_no_mean() -> None:
    begun = begun_of("a")
    values = np.full((4, 3), 0.1)
    values[1, 2] = math.nan
    values[3, 0] = math.inf
    row = summarize(begun, parts_of(begun, values), "done").rows[1]
    assert row.nonfinite == 2
    assert [row.kl_mean, row.kl_stderr, row.kl_median, row.kl_p999, row.loss] == [None] * 5


def test_beyond_chance_is_students_t() -> None:
    """Two-sided 1% quantiles: of 50,000 samples of n normal numbers, 1% are beyond."""
    rng = np.random.default_rng(4)
    for windows in (3, 8, 21, 100):
        x = rng.standard_normal((50_000, windows))
        t = np.abs(x.mean(1)) / (x.std(1, ddof=1) / windows**0.5)
        assert 0.008 < (t > beyond_chance(windows)).mean() < 0.012
    assert beyond_chance(1) == math.inf
    assert beyond_chance(2) > 60
