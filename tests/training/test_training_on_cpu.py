"""Steps on a CPU do the same as on a GPU, and count what a GPU would hold."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from lazy_imports import LazyImport, lazy_names
from training_runs import LLAMA, conducted, configured

from qtui_core.live.compare import by_component, by_phase
from qtui_core.live.predict import predict
from qtui_core.live.snapshot import RecordingHeader, RunDevice
from qtui_core.live.state import RunState, after
from qtui_core.memory.estimate import estimate
from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.memory.replay.record import ALLOCATE, FREE, Component, Phase
from qtui_core.memory.shape.from_config import shape_from_config

torch = LazyImport("torch")
functional = LazyImport("torch.nn.functional")
CpuTracker, as_on_a_gpu = lazy_names(
    "qtui_core.training.tracing.tracker", "CpuTracker", "as_on_a_gpu"
)
record = LazyImport("qtui_core.training.tracing.trace", "record")


def _bytes(tracker: CpuTracker) -> tuple[int, int]:
    """(allocations, frees) that were taken."""
    taken = tracker.take()
    return sum(e[0] == ALLOCATE for e in taken), sum(e[0] == FREE for e in taken)


def test_what_is_left_out_is_never_counted():
    tracker = CpuTracker()
    host = torch.ones(300)
    tracker.leave_out([host])
    with tracker:
        view = host.detach()  # an operation that returns it
        copy = host.clone()
        assert tracker.live == 1536
        made = torch.zeros(10)
        tracker.leave_out([made])
        assert tracker.live == 1536
        made.add_(1)
        assert _bytes(tracker) == (1, 0)
        tracker.leave_out([copy])  # which was taken already
        assert tracker.live == 0
        assert _bytes(tracker) == (0, 1)
        del made, copy, view
        assert _bytes(tracker) == (0, 0)
    del host
    fresh = torch.ones(300)  # may be where the old one was
    tracker.track([("fresh", fresh)], Component.WEIGHTS)
    assert tracker.live == 1536


def test_a_lookup_sums_its_gradient_in_place():
    """As without a dispatch mode, where its zeros are the only memory of that size."""
    table = torch.randn(100, 64, requires_grad=True)
    rows = torch.tensor([1, 5, 5, 7])
    with CpuTracker() as tracker:
        tracker.phase(Phase.FORWARD)
        loss = table[rows].square().sum()
        tracker.take()
        with torch.autograd.set_multithreading_enabled(False):
            loss.backward()
        sizes = [event[2] for event in tracker.take() if event[0] == ALLOCATE]
    assert sizes.count(table.nbytes) == 1
    assert table.grad is not None
    expected = torch.zeros(100, 64).index_add_(0, rows, 2 * table.detach()[rows])
    torch.testing.assert_close(table.grad, expected)


def test_autocast_is_asked_after_as_on_a_gpu():
    plain = torch.is_autocast_enabled
    with as_on_a_gpu():
        assert not torch.is_autocast_enabled()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.is_autocast_enabled()
            assert torch.is_autocast_enabled("cpu")
            assert not torch.is_autocast_enabled("cuda")
        assert not torch.is_autocast_enabled()
    assert torch.is_autocast_enabled is plain


def test_dropout_keeps_a_byte_an_element():
    x = torch.ones(64, 64, requires_grad=True)
    with as_on_a_gpu(), CpuTracker() as tracker:
        torch.manual_seed(0)
        dropped = functional.dropout(x, 0.25)
        sizes = sorted(event[2] for event in tracker.take() if event[0] == ALLOCATE)
        assert sizes == [64 * 64, 64 * 64 * 4]
        share = (dropped == 0).float().mean().item()
        assert 0.2 < share < 0.3
        torch.testing.assert_close(dropped.detach().unique(), torch.tensor([0.0, 1 / 0.75]))
        dropped.sum().backward()
        assert torch.equal(x.grad, dropped.detach())
        assert functional.dropout(x, 0.25, training=False) is x


def _told(folder: Path, fields: dict[str, Any], steps: int = 2, **more: Any) -> RunState:
    """A run with its estimate, as `qtui train` has both."""
    model = configured(folder, **more)
    ran = conducted(model, fields, steps)
    assert ran.code == 0, ran.fault
    plan = resolve(RunPlan(**fields), "bf16")
    predicted = predict(estimate(shape_from_config(LLAMA | more), plan), tensors=True)
    header = RecordingHeader(
        "", model, "", None, RunDevice("cpu", ""), {}, asdict(plan), steps, "", predicted
    )
    state = after(RunState(), header)
    for event in ran.events:
        state = after(state, event)
    return state


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"method": "inference", "batch": 2, "sequence": 96, "generate": 5},
        {"method": "inference", "batch": 2, "sequence": 96, "quant": "nf4-dq", "generate": 3},
        {"method": "qlora", "batch": 2, "sequence": 96, "lora_dropout": 0.1, "kbit_prep": "norms"},
        {"method": "full", "batch": 2, "sequence": 96, "accumulation": 2, "loop": "manual"},
    ],
    ids=str,
)
def test_phases_are_off_by_a_percent_and_by_named_parts(tmp_path, fields):
    """Against the estimate of a GPU, whose own kernels take a little besides: 1 % in every phase of
    a step; and by component nothing but what kernels of either device take meanwhile, and what a
    model this small has in blocks of 512 bytes."""
    state = _told(tmp_path, fields)
    for row in by_phase(state):
        if row.estimated is None or not row.measured:
            continue
        most = 0.02 if row.name in ("load", "prepare") else 0.01
        assert abs(row.gap) <= most, row
        if row.name in ("load", "prepare"):
            continue
        for part in by_component(state, row.name, peak=True):
            if part.name not in ("temporaries", "activations"):
                assert abs(part.estimated - part.measured) <= 0.01 * row.measured, (row, part)


@pytest.mark.slow
def test_a_run_after_a_trace_in_its_process_has_its_values(tmp_path):
    """A trace replaces functions of torch and transformers, among them those that initialize
    buffers: without them a model has what was in memory before."""
    fields: dict[str, Any] = {"method": "full", "batch": 2, "sequence": 96}
    model = configured(tmp_path)
    alone = conducted(model, fields, 3).losses
    record(LLAMA, resolve(RunPlan(**fields), "bf16"))
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills new memory with NaN
    try:
        assert conducted(model, fields, 3).losses == alone
    finally:
        torch.use_deterministic_algorithms(False)
