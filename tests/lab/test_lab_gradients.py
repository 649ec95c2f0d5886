"""Loss scales: histograms, compared with direct counts and casts; and GradScaler on real steps."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from lab_runs import conducted, fits
from lazy_imports import LazyImport

from qtui_core.formats.catalog import FORMATS
from qtui_core.formats.magnitudes import best_scale, flushed, together
from qtui_core.job import IDLE
from qtui_core.lab.catalog import experiment_named

torch = LazyImport("torch")
ranges = LazyImport("qtui_core.training.measuring.ranges")
gradients = LazyImport("qtui_core.lab.numerics.products")
lossscale = LazyImport("qtui_core.lab.experiments.lossscale")


CASTS = {"fp16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}


def spread(count: int = 50_000):
    """Gradients over many decades, including zeros."""
    generator = torch.Generator().manual_seed(0)
    exponent = torch.randint(-60, 3, (count,), generator=generator).float()
    x = torch.randn(count, generator=generator) * torch.exp2(exponent)
    x[::100] = 0
    return x


def test_shares_of_a_histogram_are_what_a_cast_makes_zero():
    """For every format and scale; only values exactly in the middle may differ."""
    x = spread()
    found = ranges.magnitudes(x)
    assert found.zeros == int((x == 0).sum())
    assert found.largest == float(x.abs().max())

    for name, power in itertools.product(CASTS, (-8, 0, 3, 8, 16)):
        scaled = (x * 2.0**power).clamp(-400, 400)
        zero = (scaled.to(getattr(torch, CASTS[name])).float() == 0) & (x != 0)
        middle = float(FORMATS[name].min_positive) / 2
        ties = int((scaled.abs() == middle).sum())
        counted = flushed(name, found, power) * found.there
        assert abs(int(zero.sum()) - round(counted)) <= ties


def test_magnitudes_add_up_and_their_quantiles_lie_in_their_power_of_two():
    x = spread()
    whole = ranges.magnitudes(x)
    assert together(map(ranges.magnitudes, x.split(777))) == whole
    there = x[x != 0].abs().double().log2()

    for share in (0.01, 0.25, 0.5, 0.99):
        exact = float(there.quantile(share))
        assert abs(whole.quantile(share) - exact) < 0.3
    nothing = ranges.magnitudes(torch.zeros(3))
    assert (nothing.there, nothing.zeros, nothing.quantile(0.5)) == (0, 3, None)
    assert best_scale("fp16", nothing.largest, 8) is None
    ill = ranges.magnitudes(torch.tensor([1.0, float("nan"), float("inf")]))
    assert (ill.there, ill.largest, ill.counts[-1]) == (1, 1.0, 2)


def test_the_best_scale_leaves_its_room_and_twice_it_does_not():
    for name, largest in itertools.product(CASTS, (1e-9, 0.0055, 1.0, 3e4)):
        power = best_scale(name, largest, 8)
        most = float(FORMATS[name].max)
        assert 8 * largest * 2.0**power <= most < 8 * largest * 2.0 ** (power + 1)


def test_a_scaled_loss_gives_the_gradient_of_the_loss():
    class Tiny(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = torch.nn.Embedding(11, 4), torch.nn.Linear(4, 11)

        def forward(self, input_ids):
            from types import SimpleNamespace

            return SimpleNamespace(logits=self.out(self.embed(input_ids)))

    net, ids = Tiny(), torch.arange(22).view(2, 11) % 11
    plain, loss = gradients.gradients_of(net, ids)
    scaled, same = gradients.gradients_of(net, ids, 2.0**12)
    assert loss == same
    assert torch.equal(plain, scaled)  # a power of two changes no bit
    seen = {}
    with gradients.gradients_seen(
        {"out": net.out}, lambda name, x, g: seen.update({name: g.shape})
    ):
        gradients.gradients_of(net, ids)
    assert seen == {"out": (2, 10, 11)}
    with torch.no_grad():
        net.out.weight[0, 0] = float("nan")
    with pytest.raises(Exception, match=r"^The gradient is not finite .*\.$"):
        gradients.gradients_of(net, ids)


ERRORS = {
    "fp16": (0.1,) + (0.01,) * 6, "e5m2": (0.2,) + (0.06,) * 6, "e4m3": (0.9,) * 4 + (0.03,) * 3,
}  # fmt: skip


def outcomes():
    """An outcome of each kind, as jobs return them."""
    g = ranges.magnitudes(spread() * 2.0**-10)
    return {
        "gradients": lossscale.LabGradients(g, g, g, ERRORS),
        "from 2^24": lossscale.ScalerRun((4.0, 2.0, 1.0, 1.0), 2, 0, trained="nano"),
        "from 1": lossscale.ScalerRun((1.0, 0.5), 0, 1, "a.weight"),
    }


def test_what_is_said_holds_whatever_is_done_so_far():
    settings = experiment_named("lossscale").settle({})
    whole = outcomes()

    subsets = [c for n in range(len(whole) + 1) for c in itertools.combinations(whole, n)]
    for keys in [(*keys,) for keys in subsets]:
        found = lossscale.conclude(settings, {key: whole[key] for key in keys})
        assert found.verdict.endswith("." * bool(keys))
        assert ("no scale helps" in found.verdict) == ("from 1" in keys)
        falls = "from 2^24" in keys and "from 1" not in keys
        assert ("on its way to" in found.verdict) == falls
        assert ("E4M3 is the better" in " ".join(found.notes)) == ("gradients" in keys)
        assert "from 1" in keys or fits(
            found.verdict, "times as large." if "gradients" in keys else ""
        )


def test_dropout_is_no_error_of_a_format(tmp_path):
    import running_models

    from qtui_core.lab.training.tasks import TASKS, LabSubject

    model = running_models.llama(tmp_path / "drops", attention_dropout=0.5)
    subject = LabSubject(replace(TASKS["prose"], batch=1, sequence=32), str(model))
    batch = next(subject.batches(0))
    one, again, run = (
        gradients.gradients_of(net, batch)[0]
        for net in (subject.start(), subject.start(), subject.fresh(0))
    )
    assert float(one.norm()) > 0
    assert torch.equal(one, again)
    assert torch.equal(one, run)


def test_unusual_courses_of_a_scale_are_told():
    def concluded(**outcomes):
        given = {key.replace("_", " "): run for key, run in outcomes.items()}
        return lossscale.conclude(experiment_named("lossscale").settle({}), given)

    found = concluded(from_2=lossscale.ScalerRun((1.0, 1.0, 2.0), 0, 0))
    assert found.verdict == "GradScaler, from 2, skipped no step."
    # It falls for as long as float32 has numbers.
    found = concluded(from_1=lossscale.ScalerRun((1.0, 0.5, 0.0), 0, 2, "a.weight"))
    assert "a.weight has a gradient that is not finite" in found.rows[0]["cause"]
    assert found.rows[0]["ends"] is None
    assert found.pictures[0].lines[0].y == (0.0, -1.0, None)
    zero = ranges.magnitudes(torch.zeros(4))
    found = concluded(gradients=lossscale.LabGradients(zero, zero, zero, ERRORS))
    assert found.verdict == (
        "Every gradient but the head's is zero here, so there is nothing to scale."
    )
    assert [picture.title for picture in found.pictures] == [
        "error of the weight gradient over the loss scale"
    ]


def test_a_gradient_that_no_scale_helps_is_told_from_an_overflow(monkeypatch):
    """The square root of zero is finite, but its derivative is not."""
    plain = lossscale.loss_of

    def spoilt(net, ids):
        return plain(net, ids) + (next(net.parameters()).sum() * 0).sqrt()

    monkeypatch.setattr("qtui_core.lab.experiments.lossscale.loss_of", spoilt)
    settings = experiment_named("lossscale").settle({"steps": 2})
    run = lossscale.scaler_run(settings, "demo", 4.0, IDLE)
    assert (run.overflows, run.upstream, run.scales) == (0, 2, (4.0, 2.0, 1.0))
    assert run.first == "model.embed_tokens.weight"


@pytest.mark.slow
def test_a_scaler_that_starts_too_high_comes_down(monkeypatch):
    monkeypatch.setattr("qtui_core.lab.experiments.lossscale.SCALES", (0, 4, 16, 24))
    _, result = conducted("lossscale", steps=9, starts=(1.0, 2.0**24), interval=6, lr=1e-3)
    rows = {row["what"]: row for row in result.findings.rows if "skipped" in row}
    high, low = rows["GradScaler, from 2^24"], rows["GradScaler, from 2^0"]
    assert 3 < high["skipped"] < 15
    assert high["cause"] == "overflow at that scale"
    assert (low["skipped"], low["ends"]) == (0, 1)
    errors = {(r["what"], r["scale"]): r["error"] for r in result.findings.rows if "error" in r}
    assert errors["E4M3", 16] < errors["E5M2", 16] < errors["E5M2", 0] < errors["E4M3", 0]
    assert errors["FP16", 4] < errors["FP16", 0] < 0.01
    assert errors["E4M3", 24] > 3 * errors["E4M3", 16]  # overflow
    best = {row["what"]: row["best"] for row in result.findings.rows if "best" in row}
    assert best["FP16"] == 16  # what GradScaler starts from
