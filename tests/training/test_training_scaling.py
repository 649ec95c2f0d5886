"""Gradients under autocast to float16: torch's scaler, where a Trainer has one, compared with a
step written by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from lazy_imports import LazyImport, lazy_names
from training_runs import conducted, configured

from qtui_core.live.snapshot import LogMessage
from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.models import open_model
from qtui_core.training.limits import rate_of

torch = LazyImport("torch")
load_weights, settle = lazy_names("qtui_core.training.model.weights", "load_weights", "settle")
encode, fill, text_of = lazy_names("qtui_core.training.run.data", "encode", "fill", "text_of")
left_out, make_scaler = lazy_names("qtui_core.training.model.optimizers", "left_out", "make_scaler")
batch_of = LazyImport("qtui_core.training.step", "batch_of")


PLAN = {
    "method": "full",
    "dtype": "fp32",
    "autocast": True,
    "autocast_dtype": "fp16",
    "batch": 2,
    "sequence": 32,
}
#: So large that gradients of the first steps overflow float16.
HIGH = 2.0**40


@pytest.mark.parametrize(
    ("plan", "trained", "scaled"),
    [
        ({}, "float32", True),
        ({}, "bfloat16", True),
        ({}, "float16", False),  # torch: "Attempting to unscale FP16 gradients."
        ({"autocast_dtype": "bf16"}, "float32", False),
        ({"autocast": False}, "float32", False),
        ({"method": "inference"}, "float32", False),
    ],
)
def test_a_run_has_a_scaler_where_a_trainer_has_one(plan, trained, scaled):
    resolved = resolve(RunPlan(**(PLAN | plan)), "fp32")
    dtype = getattr(torch, trained)
    model = torch.nn.Linear(4, 4, dtype=dtype)
    scaler = make_scaler(resolved, model, "cpu")
    assert (scaler is not None) is scaled
    if scaled:
        assert isinstance(scaler, torch.amp.GradScaler)
        assert scaler.is_enabled()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler.scale(model(torch.ones(2, 4, dtype=dtype)).float().sum()).backward()
        scaler.step(optimizer)  # takes gradients of this type
        scaler.update()


def test_a_step_that_was_left_out_is_said():
    assert left_out(3, 65536.0, 65536.0) == left_out(3, 65536.0, 131072.0) == ""
    assert "Step 3" in left_out(3, 65536.0, 32768.0)
    assert "32,768" in left_out(3, 65536.0, 32768.0)


def _by_hand(model: str, fields: dict[str, Any], steps: int, start: float) -> tuple[Any, ...]:
    """(losses, scales, optimizer) of steps in the words of torch's own examples of mixed precision
    (docs: "Gradients for autocast with float16 may underflow", GradScaler)."""
    torch.manual_seed(0)
    plan = resolve(RunPlan(**fields), "fp32")
    losses, scales = [], []
    with open_model(model) as source:
        built = load_weights(source, plan)
        settle(built.model, "cpu")
        tokens = encode(text_of(None).content, source, built.model)
        batch = batch_of(built, plan, "cpu")
        filled = fill(batch, tokens.ids, plan)
        network = built.model.train()
        optimizer = torch.optim.AdamW(network.parameters(), lr=rate_of(plan), foreach=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=start)
        for _ in range(steps):
            next(filled)
            with torch.autocast("cpu", dtype=torch.float16):
                loss = network(**batch).loss
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
            scales.append(scaler.get_scale())
    return losses, scales, optimizer


@pytest.mark.slow
@pytest.mark.parametrize("start", [2.0**16, HIGH])
def test_steps_are_those_written_by_hand(tmp_path, monkeypatch, start):
    model = configured(tmp_path, torch_dtype="float32")
    losses, scales, _ = _by_hand(model, PLAN, 12, start)
    scaler = partial(torch.amp.GradScaler, init_scale=start)
    monkeypatch.setattr("qtui_core.training.model.optimizers.torch.amp.GradScaler", scaler)
    ran = conducted(model, PLAN, 12)
    assert ran.code == 0, ran.fault
    assert ran.losses == losses
    lowered = [
        n for n, (a, b) in enumerate(zip([start, *scales], scales, strict=False), 1) if b < a
    ]
    assert (len(lowered) > 2) is (start == HIGH)
    told = [each.text for each in ran.of(LogMessage) if "changed nothing" in each.text]
    assert [f"Step {number} " in text for number, text in zip(lowered, told, strict=True)] == [
        True
    ] * len(lowered)
