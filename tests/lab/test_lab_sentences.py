"""What is concluded under settings and ends that are not the usual ones: true, and no claim."""

import pytest
from lab_runs import fits, made_run, trained
from lazy_imports import LazyImport
from told_truly import faults_of

from qtui_core.job import IDLE
from qtui_core.lab.catalog import experiment_named

comparison = LazyImport("qtui_core.lab.training.comparison")
lowbit = LazyImport("qtui_core.lab.experiments.lowbit")
matmul = LazyImport("qtui_core.lab.experiments.matmul")
qat = LazyImport("qtui_core.lab.experiments.qat")
range_test = LazyImport("qtui_core.lab.experiments.range_test")
survive = LazyImport("qtui_core.lab.experiments.survive")
tasks = LazyImport("qtui_core.lab.training.tasks")
torch = LazyImport("torch")
underflow = LazyImport("qtui_core.lab.experiments.underflow")


ILL = {"diverged": 3, "first": "a.weight", "held_after": None}


def concluded(experiment, outcomes, **given):
    found = experiment_named(experiment)
    return found.module().conclude(found.settle(given), outcomes)


def kept(tensor, share, matrix=True, stored="bf16", elements=64):
    """The same share at every rate that is tried below the last two, and all of it there."""
    rates = len(survive.RATES)
    shares = (share,) * (rates - 2) + (1.0, 1.0)
    lost = tuple(1 - s for s in shares)
    return survive.UpdateShares(tensor, stored, matrix, elements, shares, lost, share, 1 - share)


def update_of(share, lr=1e-5, **others):
    """Updates of which BF16 keeps a share, in one matrix; of the `others`, norms, theirs."""
    norms = [kept(name, of, matrix=False, elements=4) for name, of in others.items()]
    return underflow.Updates(
        (underflow.Reach("bf16", lr, "all", 1 - share, share, 100),),
        ((0,),),
        (kept("a.weight", share), *norms),
    )


# --- underflow


def test_shares_are_shares():
    """Of a gain: none if training spoils the model, no more than all if it does better than fp32.
    Of a step: all only if nothing is lost."""
    cases = (
        ("40 steps kept 0% of what fp32 gained", trained(0.05)),
        ("40 steps kept 75% of what fp32 gained", trained(0.01)),
        ("40 steps kept all of what fp32 gained", trained(-0.01)),
    )

    for words, run in cases:
        outcomes = {"updates": update_of(0.05), "fp32 0": trained(0.0), "null 0": trained(1e-6)}
        found = concluded("underflow", outcomes | {"nearest 0": run}, lr=1e-5).verdict
        assert words in found
        assert not faults_of(found)
    nearly = concluded("underflow", {"updates": update_of(0.9999)}, lr=1e-5).verdict
    assert "keep 99% of each step" in nearly


def test_a_share_of_the_gain_is_claimed_only_where_fp32_gains():
    exact = trained(0.0)
    worse = made_run(*exact.losses, held_before=1.2, held_after=1.3)  # training spoils it

    def said(twin):
        outcomes = {"updates": update_of(0.05), "fp32 0": twin, "null 0": trained(1e-6)}
        return concluded("underflow", outcomes | {"nearest 0": trained(0.01)}, lr=1e-5)

    assert "40 steps kept 75% of what fp32 gained" in said(exact).verdict
    found = said(worse)
    assert "of what fp32 gained" not in found.verdict
    assert all(row.get("gain") is None for row in found.rows)


def test_weights_that_keep_a_step_and_lose_the_run_do_not_do():
    """And a run that diverged is told, with the step and the tensor; so is fp32's."""
    outcomes = {"updates": update_of(0.95), "fp32 0": trained(0.0), "null 0": trained(1e-6)}
    fine = concluded("underflow", outcomes | {"nearest 0": trained(1e-6)}, lr=1e-5)
    assert fine.verdict.endswith(": BF16 weights are good enough here.")
    lost = concluded("underflow", outcomes | {"nearest 0": trained(0.03)}, lr=1e-5).verdict
    assert "good enough" not in lost
    assert "would help" in lost
    ill = concluded("underflow", outcomes | {"nearest 0": trained(None)}, lr=1e-5)
    assert "the run with these weights diverged, step 3: a.weight" in ill.verdict
    assert "step 3: a.weight" in [row.get("diverged") for row in ill.rows]
    behind = made_run(*trained(0.005).losses, held_after=1.29)  # held out it is ahead by chance
    behind = concluded("underflow", outcomes | {"nearest 0": behind}, lr=1e-5).verdict
    assert "but after 40 steps training is 0.005 nats behind that of fp32" in behind
    assert behind.endswith("would help.")
    spoilt = outcomes | {"stochastic 0": trained(0.03), "nearest 0": trained(0.03)}
    assert "stochastic rounding" not in concluded("underflow", spoilt, lr=1e-5).verdict
    nothing = concluded("underflow", outcomes | {"fp32 0": trained(None)}, lr=1e-5).verdict
    assert "Float32 itself diverged at step 3 (a.weight is not finite)" in nothing
    assert "would help" not in nothing


# --- seeds, rates and ends


def test_a_run_that_was_stopped_counts_the_seeds_that_it_came_to():
    assert [
        comparison.seeds_counted(1, 1),
        comparison.seeds_counted(3, 3),
        comparison.seeds_counted(1, 3),
    ] == ["one seed", "3 seeds", "1 of 3 seeds"]
    outcomes = {f"{n} {s}": trained(0.0) for n in ("fp32", "null") for s in (0, 1)}
    outcomes |= {"bf16 0": trained(0.01), "bf16 1": trained(0.01), "nvfp4 0": trained(0.01)}
    found = concluded("lowbit", outcomes, seeds=(0, 1, 2), recipes=("bf16", "nvfp4"))
    assert "20 steps, 1 of 3 seeds: " in found.verdict


def test_at_rate_0_nothing_is_claimed():
    same = {f"{name} 0": trained(0.0) for name in ("fp32", "null", "bf16", "2 bits", "8 bits")}
    same["nvfp4 0"] = trained(0.02)
    found = concluded("lowbit", same, lr=0.0, recipes=("bf16", "nvfp4"))
    assert found.verdict.startswith("At lr 0 nothing is learned")
    found = concluded("range-test", same, lr=0.0, bits=(2, 8), steps=20)
    assert found.verdict.startswith("At lr 0 nothing is learned")
    start = qat.Untouched(0.8, {"2": 1.0}, 64)
    runs = {f"{n} 0 0": made_run(0.8, facts={"2": 1.0}) for n in ("fp32", "null")}
    outcomes = {"as it is": start, "qat 2 0 0": made_run(1.0), **runs}
    assert "QAT is PTQ" in concluded("qat", outcomes, lr=0.0, bits=(2,)).verdict


def test_no_gap_is_seen_that_the_floor_hides():
    """Whatever tolerance is asked for."""
    outcomes = {"fp32 0": trained(0.0), "null 0": trained(1e-4), "8 bits 0": trained(2e-4)}
    outcomes["8 bits 0"] = made_run(*outcomes["8 bits 0"].losses, facts={"operations": 1.0})
    found = concluded("range-test", outcomes, bits=(8,), tolerance=0.0, steps=20)
    assert "takes 8 bits (B_match, within 0.0003 nats" in found.verdict


# --- qat


def test_qat_that_diverged_is_told_with_its_step():
    start = qat.Untouched(0.8, {"2": 1.0, "4": 0.81}, 64)
    runs = {"as it is": start, "qat 2 0.0003 0": made_run(1.0, float("nan"), **ILL)}
    for rate, bits, ptq in (("0.0003", "2", 0.95), ("5e-05", "4", 0.81)):
        for name, off in (("fp32", 0.0), ("null", 1e-5)):
            runs[f"{name} {rate} 0"] = made_run(0.8 + off, facts={bits: ptq + off})
    runs["qat 4 5e-05 0"] = made_run(0.80)
    found = concluded("qat", runs, bits=(2, 4))
    assert "at 2 bits QAT diverged at step 3 (a.weight), so take a lower --lr" in found.verdict
    assert "0.01 nats better at 4 bits" in found.verdict
    assert found.rows[0]["seen"] == "diverged"
    runs["fp32 0.0003 0"] = made_run(1.0, float("nan"), **ILL)
    runs["qat 2 0.0003 0"] = made_run(0.9)
    found = concluded("qat", runs, bits=(2, 4))
    assert "at 2 bits training in fp32 diverged at step 3 (a.weight)" in found.verdict


def test_the_floor_of_qat_is_no_smaller_than_that_of_its_training():
    """Losses after PTQ may be near each other by chance."""
    runs = {
        "as it is": qat.Untouched(0.8, {"4": 0.81}, 64),
        "fp32 5e-05 0": made_run(0.8, facts={"4": 0.81}),
        "null 5e-05 0": made_run(0.801, facts={"4": 0.81}, held_after=None),
        "qat 4 5e-05 0": made_run(0.809),
    }
    found = concluded("qat", runs, bits=(4,))
    assert found.floor == pytest.approx(0.001)
    assert found.rows[0]["seen"] == "no difference"


# --- matmul, survive, layers


def test_layers_that_are_recommended_are_measured():
    errors, sizes = {"a": 0.3, "b": 0.1, "c": 0.1}, {"a": 10, "b": 100, "c": 100}
    line, order = matmul.frontier(errors, sizes)
    assert matmul.recommended(line, order) == ["a"]
    assert line[1] == pytest.approx((10 / 210, (0.1**2 + 0.1**2) ** 0.5))


def test_the_way_that_is_nearer_is_told_for_a_weight_by_rows():
    def said(folded, again):
        dx = {"folded into G": folded, "requantized": again, "mean of scales": 0.13}
        return matmul.remedy_of(dx)

    assert "folded into G (0.50%; requantized 0.70%; taken" in said(0.005, 0.007)
    assert "requantized along the other axis (0.50%; its scales folded" in said(0.007, 0.005)


def survival(*shares, drawn=1.0, **given):
    found = survive.Survival(
        len(shares), len(shares), shares, dict.fromkeys(("bf16", "fp16"), drawn)
    )
    return concluded("survive", {"tensors": found}, **given)


def test_survival_is_that_of_the_worst_tensor_with_the_rate_that_would_do():
    """Norms are tensors too; a dead decay or second moment is told with its threshold, 2^-9."""
    rate = f"{survive.RATES[-2]:.2g}"

    def said(*shares, **given):
        return survival(*shares, **given).verdict

    good, bad, norm = kept("a", 0.95), kept("b", 0.4), kept("norm", 0.0, matrix=False)
    assert said(good, beta2=0.95) == (
        "The run survives BF16 weights at lr 2e-05: every tensor keeps 95% of a step or more."
    )
    told = said(good, bad, norm, beta2=0.95)
    assert told == (
        "At lr 2e-05 the run does not survive BF16 weights: b keeps 40% and 1 norm or bias keeps "
        "0% of a step; stochastic rounding (no byte more, kept 100%) or fp32 weights (2 bytes more "
        f"a parameter) would do. From lr {rate} on every tensor keeps 90%."
    )
    few = kept("norm", 0.0, matrix=False, elements=4)
    assert "0% of a step; norm in fp32 (8 B more), stochastic" in said(good, few)
    assert fits(said(good, bad), "fp32 weights (2 bytes more a parameter) would do.")
    told = said(good)
    assert "Keep its states in fp32 (4 bytes more): in BF16 the second moment never" in told
    assert "never falls (1 − beta2 = 0.001, less than 0.002)" in told
    assert "second moment never" in survival(bad).notes[0]
    assert "second moment" not in said(kept("a", 0.95, stored="fp16"), store="fp16")
    assert "nothing to survive" in said(norm)
    assert "nothing to survive" in said(bad, lr=0.0)


def test_a_cure_is_offered_where_it_was_run_and_was_enough():
    """Kahan summation is run nowhere here; with a decay that is dead only fp32 helps, and where
    that is dead in fp32 too, nothing does."""
    good, bad = kept("a", 0.95), kept("b", 0.4)
    assert "stochastic" not in survival(bad, drawn=0.5).verdict
    dead_decay = survival(good, bad, beta2=0.95, decay=0.1).verdict
    assert (
        "b keeps 40% of a step, and weight decay does nothing (lr × decay = 2e-06, less than "
        "0.002); fp32 weights (2 bytes more a parameter) would do."
    ) in dead_decay
    assert "would do" not in survival(good, beta2=0.95, decay=1e-4).verdict
    outcomes = {"updates": update_of(0.05), "fp32 0": trained(0.0), "null 0": trained(1e-6)}
    outcomes |= {"nearest 0": trained(0.03)}
    assert "stochastic" not in concluded("underflow", outcomes, lr=1e-5).verdict
    outcomes |= {"stochastic 0": trained(1e-6)}
    found = concluded("underflow", outcomes, lr=1e-5).verdict
    assert "; stochastic rounding (no byte more, kept 100%) or fp32 weights (2 bytes" in found
    assert "Kahan" not in found + dead_decay


def test_both_experiments_judge_a_run_by_one_rule():
    """A matrix that keeps its steps, and norms that do not: neither says good enough, and both name
    the norms and the same rate."""
    shares = (kept("a.weight", 0.95), kept("n", 0.0, matrix=False, elements=4))
    outcomes = {"updates": update_of(0.95, n=0.0), "fp32 0": trained(0.0), "null 0": trained(1e-6)}
    outcomes |= {"nearest 0": trained(1e-6)}
    one = concluded("underflow", outcomes, lr=1e-5).verdict
    other = survival(*shares, lr=1e-5, beta2=0.95).verdict
    assert "good enough" not in one
    assert "does not survive" in other
    rate = f"{survive.RATES[-2]:.2g}"
    assert f"90% of every tensor from lr {rate} on" in one
    assert f"From lr {rate} on every tensor keeps 90%" in other
    for said in (one, other):
        assert "1 norm or bias keeps 0% of a step" in said
        assert "n in fp32 (8 B more)" in said


def test_what_survives_in_a_part_of_a_tensor_has_the_scale_of_the_whole():
    import torch

    weight = torch.full((4, 64), 0.01)
    weight[0, 1] = 448.0
    part = weight[2:].reshape(-1)
    ones = torch.ones(128)
    at = {s: survive.shares_of("w", weight, part, ones, 1e-4, s) for s in ("e4m3", "fp16")}
    assert at["e4m3"].lost_here == 1.0  # under the smallest number, 2^-9, of a scale of 1
    assert at["fp16"].lost_here == 0.0


def test_a_product_without_errors_chooses_nothing():
    exact = "Every dW is exact here, so it cannot choose between formats of 8 bits."
    assert matmul.best_of({"int8 row": 0.0, "fp8 row": 0.0}) == exact
    assert "times nearer" not in matmul.best_of({"fp8 tensor": 0.1, "fp8 tensor e5m2": 0.1001})


# --- a sample of a large model says what all of it says


def survived(**settings):
    given = {"batch": 1, "sequence": 64} | settings
    row = experiment_named("survive")
    settled = row.settle(given)
    (job,) = survive.jobs(settled, "demo")
    shares = job.run(IDLE)
    return shares, survive.conclude(settled, {"tensors": shares})


def test_a_sample_of_a_tensor_has_the_updates_of_the_whole():
    subject = tasks.subject_of(tasks.LabTask("nano", 1, 32, None, False))
    whole = survive.wanted_updates(subject, IDLE)
    sample = survive.wanted_updates(subject, IDLE, most=1000)
    assert list(whole) == list(sample)
    for name, (weight, u) in sample.items():
        every = max(1, whole[name][0].numel() // 1000)
        torch.testing.assert_close(weight, whole[name][0].reshape(-1)[::every], rtol=0, atol=0)
        torch.testing.assert_close(u, whole[name][1].reshape(-1)[::every], rtol=0, atol=0)


@pytest.mark.slow
def test_a_large_model_is_tried_in_part_and_as_it_is_stored(monkeypatch):
    whole, said = survived()
    assert whole.tried == whole.tensors
    assert whole.dtype == "fp32"
    assert not any("tensors" in note for note in said.notes)
    monkeypatch.setattr("qtui_core.lab.experiments.survive._WHOLE", 1000)
    part, told = survived()
    assert 0 < part.tried < part.tensors == whole.tensors
    assert part.dtype == "bf16"
    assert f"{part.tried:,} of {part.tensors:,} tensors" in " ".join(told.notes)
    assert len(told.notes) == len(said.notes) + 2
    by_name = {(s.tensor, s.stored): s for s in whole.shares}
    for share in part.shares:
        same = by_name[share.tensor, share.stored]
        assert share.kept_here == pytest.approx(same.kept_here, abs=0.05)
        assert share.kept == pytest.approx(same.kept, abs=0.05)


@pytest.mark.slow
def test_the_rate_that_is_named_is_enough_and_a_lower_one_is_not():
    shares, said = survived(lr=1e-5)
    assert "does not survive" in said.verdict
    stored = [s for s in shares.shares if s.stored == "bf16"]
    kept = [min(at) for at in zip(*(s.kept for s in stored), strict=True)]
    by_rate = dict(zip(survive.RATES, kept, strict=True))
    enough = min(rate for rate in by_rate if all(k > 0.9 for r, k in by_rate.items() if r >= rate))
    assert f"From lr {enough:.2g} on every tensor keeps 90%." in said.verdict
    _, above = survived(lr=float(f"{enough:.2g}") * 1.05)
    assert "The run survives" in above.verdict
