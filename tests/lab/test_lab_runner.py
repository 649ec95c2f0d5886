"""How experiments are run: what diverges, what goes on, and which kernels this machine has."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from every import every
from lab_runs import IDLE, conducted, little_held_out, made_run, small_subject
from lazy_imports import LazyImport

from qtui_core.errors import UsageError
from qtui_core.lab.catalog import EXPERIMENTS, experiment_named
from qtui_core.lab.results import JobDone

torch = LazyImport("torch")
comparison = LazyImport("qtui_core.lab.training.comparison")
matmul = LazyImport("qtui_core.lab.experiments.matmul")
runner = LazyImport("qtui_core.lab.runner")
tasks = LazyImport("qtui_core.lab.training.tasks")
twins = LazyImport("qtui_core.lab.training.twins")

NAN, INF = float("nan"), float("inf")
#: An experiment of six short runs of `nano` a seed.
QUICK = {"bits": (2, 3, 4), "steps": 1}


@pytest.fixture
def quick():
    with little_held_out(1):
        yield


def test_a_run_that_diverges_says_when_and_what_was_first():
    """The first tensor is a weight; or the output of a layer, although all weights are finite; or a
    gradient, although the loss is finite."""
    subject = small_subject()

    def spoilt(name, value):
        def prepare(model):
            with torch.no_grad():
                model.get_parameter(name)[0] = value

        return twins.Recipe(prepare=prepare)

    def beyond(model):
        layer = model.model.layers[1].mlp.up_proj
        layer.register_forward_hook(lambda module, given, output: output + INF)

    def crooked(model):
        """The square root of zero, whose value is finite and whose derivative is not."""
        weight = model.model.layers[0].mlp.down_proj.weight
        model.lm_head.register_forward_hook(
            lambda module, given, output: output + (weight.sum() * 0).sqrt()
        )

    def late(model, step):
        if step == 0:
            with torch.no_grad():
                model.model.norm.weight[3] = NAN

    def check(recipe, step, first):
        run = twins.train(subject, recipe, seed=0, steps=3, lr=1e-3, job=IDLE)
        assert (run.diverged, run.first) == (step, first)
        assert len(run.losses) == step
        assert run.held_after is None

    every(
        [
            (spoilt("model.layers.1.mlp.gate_proj.weight", NAN), 1,
             "model.layers.1.mlp.gate_proj.weight"),
            (twins.Recipe(prepare=beyond), 1, "the output of model.layers.1.mlp.up_proj"),
            (twins.Recipe(prepare=crooked), 1,
             "the gradient of model.layers.0.mlp.down_proj.weight"),
            (twins.Recipe(stepped=late), 2, "model.norm.weight"),
        ],
        check,
    )  # fmt: skip


def test_a_twin_whose_gradient_is_not_finite_is_not_said_to_begin_so():
    ill = made_run(3.0, diverged=1, first="the gradient of w", held_after=None)
    found = comparison.LabComparison((), {"seeds": (0,), "lr": 1e-3}, {"fp32 0": ill})
    assert found.broken == (
        "Float32 itself diverged at step 1 (the gradient of w is not finite), so nothing can be "
        "compared; lower --lr, or look for weights that are not finite."
    )


def test_a_run_that_goes_on_computes_the_same_bits(monkeypatch, quick):
    """Its parts are those of the uninterrupted run, though fewer are left: also their threads,
    which decide the order of sums."""
    told, whole = conducted("range-test", **QUICK, seeds=(0, 1))
    done = [each for each in told if isinstance(each, JobDone)]
    again, same = conducted("range-test", done=done[:9], **QUICK, seeds=(0, 1))
    assert same.findings == whole.findings
    losses = {t.job: t.outcome["losses"] for t in again if isinstance(t, JobDone)}
    assert losses == {t.job: t.outcome["losses"] for t in done}

    monkeypatch.setattr("qtui_core.lab.runner._ALONE", 0.01)
    monkeypatch.setattr("qtui_core.lab.runner._THREADS", 2)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    before = torch.get_num_threads()
    try:
        conducted("range-test", processes=None, done=done[:-1], **QUICK, seeds=(0, 1))
        assert torch.get_num_threads() == 1  # as two processes have, though one part is left
    finally:
        torch.set_num_threads(before)


def test_recorded_parts_that_cannot_be_read_are_run_again(quick):
    told, whole = conducted("range-test", **QUICK)
    done = [each for each in told if isinstance(each, JobDone)]
    hostile = [
        replace(done[0], outcome={"name": "fp32", "steps": "many", "course": None}),
        replace(done[1], outcome=[1, 2]),
        replace(done[2], job="fp32 99"),
        replace(done[3], fault="It could not run."),
    ]
    _, same = conducted("range-test", done=[*hostile, *done[4:]], **QUICK)
    assert same.findings == whole.findings
    assert same.ended == "done"


def test_a_part_that_finds_no_memory_in_the_second_process_is_done_by_the_first(monkeypatch, quick):
    def none(see, **given):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    class Short:
        over = False

        def __init__(self, *about):
            pass

        def run(self, job, tell):
            done = runner.run_part(replace(job, run=none), lambda *_: None, lambda: None)
            assert done.fault.startswith("Memory ran out. ")
            return done

        def end(self):
            self.over = True

    _, whole = conducted("range-test", **QUICK, seeds=(0, 1))
    monkeypatch.setattr("qtui_core.lab.runner._SecondProcess", Short)
    _, same = conducted("range-test", processes=2, **QUICK, seeds=(0, 1))
    note = "The second process ran out of memory, so the first one did its parts."
    assert same.findings == replace(whole.findings, notes=(*whole.findings.notes, note))
    assert same.ended == "done"


SMALL = (64, 64, 32)


def test_kernels_are_right_or_not_timed(monkeypatch):
    monkeypatch.setattr("qtui_core.lab.experiments.matmul._SHAPE", SMALL)
    found = matmul.kernels(IDLE)
    *faults, _ = found.notes
    assert len(faults) + len(found.rows) == 4
    assert all(row["low"] <= row["speed"] * 1.0001 for row in found.rows)
    assert all(fault.endswith(".") for fault in faults)


def test_a_speed_is_that_of_products_timed_in_turn_with_its_spread(monkeypatch):
    """A machine that becomes twice as slow in the middle changes no ratio, and a neighbour that
    disturbs one product shows in the spread."""
    where, timed = "qtui_core.lab.experiments.matmul", []

    def quick(x, w):
        return lambda: torch.ones(4, 8), torch.ones(4, 8)

    def seconds(run):
        timed.append("bf16" if len(timed) % 2 == 0 else "k")
        slow = (2 if len(timed) > 8 else 1) * (4 if len(timed) in disturbed else 1)
        return slow * (2.0 if timed[-1] == "bf16" else 1.0)

    monkeypatch.setattr(f"{where}._KERNELS", {"k": (quick, 0.0)})
    monkeypatch.setattr(f"{where}.seconds_of", seconds)
    disturbed = set()
    for at, spread in ((0, (2, 2)), (10, (0.5, 2))):
        timed.clear()
        disturbed.add(at)
        (row,) = matmul.kernels(IDLE).rows
        assert (row["speed"], row["low"], row["high"]) == (2, *spread)
        assert timed == ["bf16", "k"] * 8


def test_a_kernel_that_is_wrong_or_missing_is_a_sentence(monkeypatch):
    import torch

    monkeypatch.setattr("qtui_core.lab.experiments.matmul._SHAPE", SMALL)

    def check(function, says):
        monkeypatch.setattr("torch._int_mm", function)
        found = matmul.kernels(IDLE)
        assert says in found.notes[0]
        assert "torch._int_mm, int8 by rows" not in {row["scheme"] for row in found.rows}

    def absent(a, b):
        raise RuntimeError("no kernel image\nmore")

    theirs = torch._int_mm
    check(absent, "does not run here: no kernel image.")
    check(lambda a, b: theirs(a, b) + 1, "is wrong here: its product is")


@pytest.mark.slow
def test_an_experiment_in_two_processes_computes_what_one_of_a_thread_does():
    before = torch.get_num_threads()
    given = {"steps": 3, "recipes": ("int8 weights",), "task": "nano"}
    try:
        told, _ = conducted("lowbit", processes=2, **given)
        torch.set_num_threads(1)
        done = {t.job: t.outcome["losses"] for t in told if isinstance(t, JobDone)}
        for key, losses in done.items():
            found = experiment_named("lowbit")
            jobs = {j.key: j for j in found.module().jobs(found.settle(given), "demo")}
            run = jobs[key].run(IDLE)
            assert list(run.losses) == list(losses), key
    finally:
        torch.set_num_threads(before)


#: In a process of its own, because the fake GPU replaces operations of PyTorch.
PROGRAM = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from qtui_core.lab.numerics import state_maps
from qtui_core.lab.numerics.products import SCHEMES
from qtui_core.lab.numerics.rounding import STORAGES
from qtui_core.lab.training.twins import null
from qtui_core.training.tracing import fake_guard

fake_guard.install()
drawn = torch.Generator().manual_seed(0)
tables = state_maps.dynamic_codes(False), state_maps.linear_codes()
with FakeTensorMode(allow_non_fake_inputs=True):
    x, w, g = (torch.empty(*shape, device="cuda") for shape in ((64, 256), (128, 256), (64, 128)))
    for name, kind in SCHEMES.items():
        for made in (kind.y(x, w, drawn), kind.dx(g, w, drawn), kind.dw(g, x, drawn)):
            assert made.device.type == "cuda", name
    moments = torch.empty(512, device="cuda")
    for codes in tables:
        assert state_maps.nearest_code(codes, 256, moments).device.type == "cuda"
    assert STORAGES["bf16"].stochastic(moments, drawn).device.type == "cuda"
    null().prepare(torch.nn.Linear(256, 128, device="cuda"))
print("fine")
"""


@pytest.mark.slow
def test_products_roundings_and_states_stay_on_the_device_of_their_operands():
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert told.stdout == "fine\n", told.stderr


def test_a_device_that_is_not_here_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UsageError, match="no CUDA device here"):
        tasks.use_device("cuda")
    tasks.use_device("cpu")


DOCS = Path(__file__).parents[2] / "docs"


def test_every_experiment_is_on_the_page_with_its_picture():
    page = (DOCS / "lab.md").read_text()

    for row in EXPERIMENTS:
        assert "device" in {setting.name for setting in row.settings}
        assert f"## {row.question}" in page
        assert f"`qtui lab {row.name}`" in page
        assert f"](lab/{row.name}.svg)" in page
        ElementTree.parse(DOCS / "lab" / f"{row.name}.svg")
