"""`survive`: what a sample of a large model says is what all of it says."""

from __future__ import annotations

import pytest
from lab_runs import unseen
from lazy_imports import LazyImport

from qtui_core.lab.catalog import experiment_named

torch = LazyImport("torch")
survive = LazyImport("qtui_core.lab.experiments.survive")
tasks = LazyImport("qtui_core.lab.training.tasks")
updates = LazyImport("qtui_core.lab.training.updates")


def found(**settings):
    given = {"batch": 1, "sequence": 64} | settings
    row = experiment_named("survive")
    settled = row.settle(given)
    (job,) = survive.jobs(settled, "demo")
    shares = job.run(unseen)
    return shares, survive.conclude(settled, {"tensors": shares})


def test_a_sample_of_a_tensor_has_the_updates_of_the_whole():
    subject = tasks.subject_of(tasks.LabTask("nano", 1, 32, None, False))
    whole = updates.wanted_updates(subject, unseen)
    sample = updates.wanted_updates(subject, unseen, most=1000)
    assert list(whole) == list(sample)
    for name, (weight, u) in sample.items():
        every = max(1, whole[name][0].numel() // 1000)
        torch.testing.assert_close(weight, whole[name][0].reshape(-1)[::every], rtol=0, atol=0)
        torch.testing.assert_close(u, whole[name][1].reshape(-1)[::every], rtol=0, atol=0)


@pytest.mark.slow
def test_a_large_model_is_tried_in_part_and_as_it_is_stored(monkeypatch):
    whole, said = found()
    assert whole.tried == whole.tensors
    assert whole.dtype == "fp32"
    assert not any("tensors" in note for note in said.notes)
    monkeypatch.setattr("qtui_core.lab.experiments.survive._WHOLE", 1000)
    part, told = found()
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
    shares, said = found(lr=1e-5)
    assert "does not survive" in said.verdict
    stored = [s for s in shares.shares if s.stored == "bf16"]
    kept = [min(at) for at in zip(*(s.kept for s in stored), strict=True)]
    by_rate = dict(zip(updates.RATES, kept, strict=True))
    enough = min(rate for rate in by_rate if all(k > 0.9 for r, k in by_rate.items() if r >= rate))
    assert f"From lr {enough:.2g} on every tensor keeps 90%." in said.verdict
    _, above = found(lr=float(f"{enough:.2g}") * 1.05)
    assert "The run survives" in above.verdict
