"""`qtui calibrate` and the profiles that estimates use: hand-made profiles, and a GPU that is
played by processes that report what a GPU would."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_calibration import CONTEXTS, MIB
from told_truly import faults_of

from qtui.engine.calibration import profile as calibration
from qtui.engine.calibration.profile import CONFIG, GRID, Commands, make_profile
from qtui.engine.estimator.requests import RequestedDevice
from qtui.engine.estimator.subjects import device_of
from qtui.engine.run.client import WORKER
from qtui.profiles import calibrated, read_profile, write_profile
from qtui.report.calibrate import calibrate_document
from qtui_core.errors import QtuiError
from qtui_core.live.snapshot import RunDevice
from qtui_core.memory.devices.device import context_bytes, cublas_workspace, find_device
from qtui_core.memory.devices.profile import MeasuredStep, Profile, ProfileError, profile_of
from qtui_core.memory.estimate import estimate
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.training.run.placement import NoGpu, Placement

SCRIPT = str(Path(__file__).parents[1] / "support" / "fake_calibration.py")
PROFILE = Profile(
    device="NVIDIA H100 80GB HBM3",
    made="2026-11-21T10:00:00+01:00",
    driver="580.65.06",
    versions={"torch": "2.13.0+cu130"},
    total_memory=85_029_158_912,
    capability=(9, 0),
    context_first=280 * MIB,
    context_products=410 * MIB,
    context_basis="this process",
    workspace_forward=32 * MIB,
    workspace_training=64 * MIB,
    segments={"1024": 2 * MIB},
    allocator={"expandable_segments": False},
    steps=(
        MeasuredStep("a", context=520 * MIB),
        MeasuredStep("b", context=460 * MIB),
        MeasuredStep("c", context=470 * MIB),
        MeasuredStep("d", failure="It did not fit."),
    ),
)


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "qtui" / "profiles"


class TestProfile:
    def test_it_is_read_as_it_was_written(self, data_folder: Path) -> None:
        path = write_profile(PROFILE)
        assert path == data_folder / "h100-sxm5-80gb.json"
        assert read_profile("NVIDIA H100 80GB HBM3") == PROFILE
        assert read_profile("H100") == PROFILE
        assert read_profile("A100") is None
        assert list(data_folder.iterdir()) == [path]  # no half-written file beside it

    def test_a_gpu_of_no_catalogue_has_one_too(self) -> None:
        path = write_profile(replace(PROFILE, device="Foundry X1 (rev. 2)"))
        assert path.name == "foundry-x1-rev-2.json"
        found = read_profile("Foundry X1 (rev. 2)")
        assert found is not None

    def test_the_context_is_the_middle_of_steps_and_the_range_that_of_all(self) -> None:
        found = PROFILE.calibration
        assert found.context == 470 * MIB
        assert (found.context_low, found.context_high) == (280 * MIB, 520 * MIB)
        assert found.torch == (2, 13)
        assert found.source == "calibrated: measured here on 2026-11-21"
        assert replace(PROFILE, steps=()).calibration.context == 410 * MIB

    @pytest.mark.parametrize(
        "text",
        ["", "[]", "{}", '{"schema_version": 1}', "null", "\x00",
         PROFILE.to_json().replace('"workspace_forward": 33554432', '"workspace_forward": "x"'),
         PROFILE.to_json().replace('"workspace_forward": 33554432', '"workspace_forward": -1'),
         PROFILE.to_json().replace("2.13.0+cu130", "newest"),
         PROFILE.to_json().replace('"schema_version": 1', '"schema_version": 2')],
    )  # fmt: skip
    def test_what_is_none_is_refused_with_what_to_do(self, text: str) -> None:
        with pytest.raises(ProfileError, match="qtui calibrate"):
            profile_of(text)

    def test_a_broken_one_changes_no_estimate(
        self, data_folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        write_profile(PROFILE).write_text("{", encoding="utf-8")
        h100 = find_device("H100")
        assert calibrated(h100) is h100
        assert "cannot be used" in caplog.text
        with pytest.raises(QtuiError, match=r"h100-sxm5-80gb\.json"):
            read_profile("H100")

    def test_a_folder_that_cannot_be_written_says_so(self, data_folder: Path) -> None:
        data_folder.parent.mkdir(parents=True)
        data_folder.write_text("a file")
        with pytest.raises(QtuiError, match="cannot be written"):
            write_profile(PROFILE)


class TestEstimates:
    def test_context_and_workspaces_are_those_measured(self) -> None:
        write_profile(PROFILE)
        device = calibrated(find_device("H100"))
        context = context_bytes(device)
        assert (context.bytes, context.low, context.high) == (470 * MIB, 280 * MIB, 520 * MIB)
        assert context.source == "calibrated: measured here on 2026-11-21"
        assert context_bytes(calibrated(find_device("H200"))).source != context.source
        workspace = cublas_workspace("2.13", device)
        assert (workspace.each, workspace.threads, workspace.kept) == (32 * MIB, 2, True)
        assert workspace.bytes == 64 * MIB
        assert cublas_workspace("2.13", device, trains=False).bytes == 32 * MIB

    def test_another_torch_keeps_what_is_known_of_it(self) -> None:
        device = replace(find_device("T4"), calibration=PROFILE.calibration)
        assert cublas_workspace("2.13", device).bytes == 64 * MIB
        assert cublas_workspace("2.12", device).bytes == 2 * 8_519_680

    def test_workspaces_that_are_given_back(self) -> None:
        none = replace(PROFILE, workspace_forward=0, workspace_training=0)
        device = replace(find_device("H100"), calibration=none.calibration)
        assert cublas_workspace("2.13", device).bytes == 0
        assert not cublas_workspace("2.13", device).kept

    def test_a_driver_that_hides_processes_leaves_the_context_as_published(self) -> None:
        hidden = replace(PROFILE, context_first=None, context_products=None, steps=())
        device = replace(find_device("T4"), calibration=hidden.calibration)
        assert context_bytes(device) == context_bytes(find_device("T4"))

    def test_the_estimate_moves_by_what_was_measured(self) -> None:
        shape = shape_from_config(CONFIG)
        plan = RunPlan(batch=2, sequence=512)
        plain = find_device("H100")
        before = estimate(shape, plan, plain)
        after = estimate(shape, plan, replace(plain, calibration=PROFILE.calibration))
        # The workspaces are as assumed; the context is 470 MiB and not the 758 of an H200.
        assert after.peak_allocated_bytes == before.peak_allocated_bytes
        assert after.process_bytes - before.process_bytes == -288 * MIB
        (context,) = [term for term in after.beyond if term.source.startswith("calibrated")]
        assert context.basis == "calibrated"
        assert context.bytes == 470 * MIB

    def test_the_app_asks_for_the_same_device(self) -> None:
        write_profile(PROFILE)
        found = device_of(
            RequestedDevice(name="NVIDIA H100 80GB HBM3", capacity=70 << 30, label="here")
        )
        assert found is not None
        assert found.calibration == PROFILE.calibration

    def test_memory_says_which(self, qtui: Any, tmp_path: Path) -> None:
        config = tmp_path / "config.json"
        config.write_text(json.dumps(CONFIG))
        arguments = ("memory", str(config), "--gpu", "H100", "--explain", "--ascii")
        before = qtui(*arguments)
        write_profile(PROFILE)
        after = qtui(*arguments)
        assert before.returncode == after.returncode == 0, after.stderr
        assert "calibrated: measured here" not in before.stdout
        assert "calibrated: measured here on 2026-11-21" in " ".join(after.stdout.split())
        said = "H100 SXM5 80GB is calibrated: context and workspaces were measured here on"
        assert said in " ".join(after.stdout.split())
        other = " ".join(qtui(*arguments, "--torch", "2.9").stdout.split())
        assert "Workspaces are those of torch 2.9: it was measured with 2.13." in other


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one GPU."""
    placement = Placement(RunDevice("cuda", "NVIDIA H100 80GB HBM3", 0, 80 << 30), "cuda:0")
    monkeypatch.setattr(calibration, "place", lambda wanted, environ: placement)


def commands(measure: str = "", run: str = "", budget: float = 60.0) -> Commands:
    return Commands(
        (sys.executable, SCRIPT, "measure", measure), (sys.executable, SCRIPT, "run", run), budget
    )


@pytest.mark.usefixtures("gpu")
class TestMeasuring:
    def test_all_of_it_becomes_a_profile(self) -> None:
        told: list[str] = []
        profile = make_profile("cuda", told.append, commands())
        assert [step.name for step in profile.steps] == [name for name, _ in GRID]
        first = profile.steps[0]
        assert first.context == CONTEXTS["qlora"]
        assert (first.allocated, first.estimated_allocated) == (810 * MIB, 800 * MIB)
        assert (first.process, first.reserved) == (900 * MIB + CONTEXTS["qlora"], 900 * MIB)
        assert first.seconds == 0.25
        assert not any(step.failure for step in profile.steps)
        # Contexts of 520, 460, 480 and 460 MiB.
        assert profile.calibration.context == 470 * MIB
        assert len(told) == 1 + len(GRID)
        assert profile_of(profile.to_json()) == profile

    def test_steps_can_be_left_out(self) -> None:
        profile = make_profile("cuda", lambda _: None, commands(run="slow"), steps=False)
        assert profile.steps == ()
        assert profile.calibration.context == 410 * MIB

    def test_a_step_that_fails_is_told_and_ends_nothing(self) -> None:
        profile = make_profile("cuda", lambda _: None, commands(run="oom"))
        failures = [step.failure for step in profile.steps]
        assert failures == ["", "It did not fit.", "", "It did not fit."]
        assert profile.calibration.context == 500 * MIB
        text = str(calibrate_document(profile, None))
        assert "full, 2 x 512: It did not fit." in text

    @pytest.mark.slow
    def test_the_time_is_kept(self) -> None:
        profile = make_profile("cuda", lambda _: None, commands(run="slow", budget=4.0))
        failures = [step.failure for step in profile.steps]
        assert failures[0] == "It was not done in time."
        assert set(failures[1:]) == {"There was no time left for it."}

    def test_the_sentence_counts_what_failed(self) -> None:
        whole = replace(PROFILE, steps=PROFILE.steps[:1])
        two = replace(PROFILE, steps=2 * PROFILE.steps[-1:], workspace_training=0)
        states = (
            ("workspaces of 64 MiB stay after a backward pass. Nothing was written.", whole),
            ("; 1 of 4 runs failed, and its reason is above.", PROFILE),
            ("; no workspace stays after a backward pass; 2 of 2 runs failed, and their", two),
        )
        for words, profile in states:
            said = calibrate_document(profile, None).conclusion
            assert words in said
            assert not faults_of(said)

    def test_hidden_processes_leave_the_context_unknown(self) -> None:
        profile = make_profile("cuda", lambda _: None, commands("hidden", "hidden"))
        assert profile.calibration.context is None
        assert profile.workspace_training == 64 * MIB
        assert "The driver does not report" in calibrate_document(profile, None).conclusion

    @pytest.mark.parametrize(
        ("wrong", "sentence"),
        [("dies", "CUDA error: no kernel image"), ("slow", "not measured within 2 s")],
    )
    def test_what_cannot_be_measured_says_why(self, wrong: str, sentence: str) -> None:
        with pytest.raises(QtuiError, match=sentence):
            make_profile("cuda", lambda _: None, commands(wrong, budget=2.0))

    def test_a_torch_that_finds_no_gpu_is_exit_code_4(self) -> None:
        with pytest.raises(NoGpu, match="There is no GPU") as error:
            make_profile("cuda", lambda _: None, commands("no gpu"))
        assert error.value.exit_code == 4


def test_without_a_gpu_there_is_a_sentence_and_exit_code_4(qtui: Any, data_folder: Path) -> None:
    done = qtui("calibrate", env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 4
    assert done.stdout == ""
    assert done.stderr.startswith("qtui: There is no GPU to run on")
    assert "nothing to calibrate" in done.stderr
    assert "--device cpu" not in done.stderr
    assert qtui("calibrate", "--device", "cpu").returncode == 4
    for other in ("tpu", "auto"):  # a profile of a processor measures nothing
        done = qtui("calibrate", "--device", other)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"qtui: {other!r} is no GPU; use --device cuda or cuda:0.\n"
    assert not data_folder.exists()


@pytest.mark.slow
def test_the_grid_runs_for_real_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plans, the configuration and the request are those of the live step; only the model is
    smaller, so that it finishes sooner."""
    import asyncio

    small_model = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2}
    monkeypatch.setattr(calibration, "CONFIG", {**CONFIG, **small_model, "vocab_size": 2000})
    name, plan = GRID[0]
    small = replace(plan, batch=1, sequence=32)
    with calibration._model() as model:
        row = asyncio.run(calibration._step(name, small, model, "cpu", WORKER, 240.0))
    assert row.failure == ""
    assert row.allocated is not None
    assert row.estimated_allocated is not None
    assert abs(row.allocated - row.estimated_allocated) < 0.05 * row.allocated
