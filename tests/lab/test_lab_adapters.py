"""Adapters: what they train and store, NF4 by its own library, and the sentences about them."""

from __future__ import annotations

import pytest
from every import every
from lab_runs import fits, little_held_out, made_run, outcomes_of, small_subject
from lazy_imports import LazyImport

from qtui_core.errors import ModelError, UsageError
from qtui_core.lab.catalog import experiment_named

torch = LazyImport("torch")
adapters = LazyImport("qtui_core.lab.experiments.adapters")
products = LazyImport("qtui_core.lab.numerics.products")
quant = LazyImport("qtui_core.quant")
scheme = LazyImport("qtui_core.schemes.scheme", "Scheme")
twins = LazyImport("qtui_core.lab.training.twins")

STEPS = 8
FULL = {"weights": 400, "trained": 400, "gradients": 400, "states": 800}
SMALL = {"weights": 410, "trained": 10, "gradients": 10, "states": 20}


def said(outcomes, **given):
    return adapters.conclude(
        experiment_named("adapters").settle({"steps": STEPS, **given}), outcomes
    )


def course(held, d=0.0, nbytes=SMALL):
    losses = [3 - step / 10 + d * (1 + step % 2 / 10) for step in range(STEPS)]
    return made_run(*losses, held_after=held, nbytes=nbytes)


def outcomes(**held):
    """Full training gains 0.1 from 3.0; each adapter ends at the given held-out loss."""
    full = made_run(*course(2.9).losses, held_before=3.0, held_after=2.9, nbytes=FULL)
    found = {"fp32 0": full, "null 0": course(2.9, 1e-6)}
    for name, loss in held.items():
        found[f"{name.replace('_', ' ')} 0"] = course(loss, loss - 2.9)
    return found


def test_adapters_train_the_bytes_of_their_formulas():
    """LoRA trains r (inputs + outputs) numbers per layer, DoRA one more per row, full training all.
    QLoRA stores half a byte per weight and its constants."""
    subject = small_subject()
    seeing = {"seed": 0, "steps": 1, "lr": 1e-2, "see": lambda *at: None}
    shapes = [m.weight.shape for n, m in products.linears(subject.fresh(0)).items()]
    shapes = shapes[:-1]  # but the head
    count = 4 * sum(p.numel() for p in subject.fresh(0).parameters())
    stored = quant.quantized_bytes
    nf4 = sum(stored(scheme.parse("nf4:dq"), tuple(shape)) - 4 * shape.numel() for shape in shapes)

    def check(method, rows, less):
        told, frozen = [], []

        def prepare(net):
            made, saved = adapters.adapted(net, method, 4, 16.0, 0, told)
            frozen.append(saved)
            return made

        run = twins.train(subject, twins.Recipe(prepare=prepare), **seeing)
        trained = sum(4 * 4 * (n + m) + rows * 4 * n for n, m in shapes)
        assert run.nbytes["trained"] == run.nbytes["gradients"] == trained
        assert run.nbytes["states"] == 2 * trained
        assert run.nbytes["weights"] - frozen[0] - trained == count + less
        assert not run.diverged
        assert told == []

    every([("LoRA", 0, 0), ("DoRA", 1, 0), ("QLoRA", 0, nf4)], check)


def test_without_bitsandbytes_nf4_is_emulated_and_said(monkeypatch):
    """The emulated values are those of bitsandbytes' layer."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 64, bias=False)
    x = torch.randn(3, 64)
    theirs, ours = (torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False)) for _ in range(2))
    for net in (theirs, ours):
        net[0].weight.data.copy_(linear.weight)
    _, exact = adapters.adapted(theirs, "QLoRA", 2, 16.0, 0, [])
    assert exact < 0

    def refuse():
        raise UsageError("It cannot.")

    monkeypatch.setattr("qtui_core.lab.experiments.adapters._four_bits", refuse)
    told = []
    _, less = adapters.adapted(ours, "QLoRA", 2, 16.0, 0, told)
    assert told == ["QLoRA's weights are emulated in float32: It cannot."]
    assert less == 64 * 64 * 4 - quant.quantized_bytes(scheme.parse("nf4:dq"), (64, 64))
    assert torch.allclose(ours(x), theirs(x), atol=1e-5)


def test_rank_stabilized_adapters_are_scaled_by_the_root():
    def scale(method):
        net = torch.nn.Sequential(torch.nn.Linear(32, 32))
        made, _ = adapters.adapted(net, method, 16, 8.0, 0, [])
        return next(m for m in made.modules() if hasattr(m, "scaling")).scaling["default"]

    assert (scale("LoRA"), scale("rsLoRA")) == (0.5, 2.0)


def test_a_model_without_layers_is_a_sentence():
    with pytest.raises(ModelError, match="no linear layers"):
        adapters.adapted(torch.nn.Sequential(torch.nn.ReLU()), "LoRA", 4, 16.0, 0, [])


def test_the_verdict_names_the_smallest_that_is_enough():
    assert said({}).verdict == ""
    assert said({"fp32 0": outcomes()["fp32 0"]}).verdict == ""
    found = said(outcomes(LoRA_8=2.96, LoRA_64=2.905, DoRA_8=2.96))
    assert found.verdict == (
        "LoRA 64 is the smallest adapter tried that is enough: in 8 steps and one seed it reaches "
        "95% of full training's held-out gain (0.1 nats) with 40 B trained instead of 1.56 KiB, at "
        "lr 0.003 instead of 0.0003."
    )
    assert fits(found.verdict, "instead of 1.56 KiB")
    assert "In training loss this run sees no difference to LoRA of the same rank." in found.notes
    shares = {row["name"]: row["share"] for row in found.rows}
    assert shares["LoRA 8"] == pytest.approx(0.4)
    poor = said(outcomes(LoRA_8=2.96, rsLoRA_8=2.93))
    assert (
        "no adapter reaches 90% of full training's held-out gain (0.1 nats): rsLoRA 8 reaches "
        "most, 70% with 40 B trained"
    ) in poor.verdict
    assert "rsLoRA 8 is better by 0.03" in " ".join(poor.notes)


def test_each_takes_the_best_of_several_rates_and_the_spoilt_are_told():
    found = outcomes()
    found["LoRA 8 0.001 0"], found["LoRA 8 0.01 0"] = course(2.94), course(2.905)
    made = said(found, adapter_lr=(1e-3, 1e-2))
    assert {row["name"]: row["lr"] for row in made.rows} == {"everything": 3e-4, "LoRA 8": 1e-2}
    assert made.verdict.startswith("LoRA 8 is the smallest adapter tried that is enough: ")
    assert made.verdict.endswith(
        "reaches 95% of full training's held-out gain (0.1 nats) with "
        "40 B trained instead of 1.56 KiB, at lr 0.01 instead of 0.0003."
    )
    assert "rsLoRA 64 ends worse than the model began" in said(outcomes(rsLoRA_64=3.1)).verdict


def test_nothing_gained_leaves_nothing_to_keep():
    found = outcomes(LoRA_8=3.0)
    full = made_run(*course(3.0).losses, held_before=3.0, held_after=3.0, nbytes=FULL)
    found["fp32 0"] = full
    assert "gains nothing on held-out text" in said(found).verdict
    found["fp32 0"] = made_run(3.0, float("nan"), diverged=2, first="x", held_after=None)
    assert said(found).verdict.startswith("Float32 itself diverged at step 2 (x is not finite)")


@pytest.mark.slow
def test_adapters_beside_full_training_on_prose():
    """Each trains less than a third of the bytes and gains at least half as much on held-out text;
    after 8 steps they gain 0.85 and 0.78 of what full training does. QLoRA stores less."""
    methods = ("LoRA", "QLoRA")
    runs = ("fp32", *(f"{method} 8" for method in methods))
    with little_held_out(64):
        _, found = outcomes_of("adapters", *runs, steps=8, ranks=(8,), methods=methods)
    rows = {row["name"]: row for row in found.rows}
    for name in ("LoRA 8", "QLoRA 8"):
        assert rows[name]["trained"] < rows["everything"]["trained"] / 3
        assert rows[name]["gain"] > 0.5 * rows["everything"]["gain"] > 0
    assert rows["QLoRA 8"]["weights"] < 0.4 * rows["everything"]["weights"]
