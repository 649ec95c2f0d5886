"""The parts of a run without a model: requests, placements, controls, the ledger, refusals."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
from every import over
from fake_nvml import NVMLError, fake_nvml
from lazy_imports import LazyImport

from qtui_core.errors import UsageError
from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.memory.replay.record import (
    ALLOCATE,
    FREE,
    PHASE,
    Component,
    Label,
    by_lifetime,
    rounded,
)
from qtui_core.telemetry.readings import read_devices
from qtui_core.training.limits import (
    RUN_LIMITS,
    TRACE_LIMITS,
    check_runnable,
    check_traceable,
    one_gpu,
    unused_options,
)
from qtui_core.training.run.placement import NoGpu, Placement, allocator_settings, place
from qtui_core.training.run.request import Controls, RunRequest, Stopped, parse_request

Ledger = LazyImport("qtui_core.training.tracing.tracker", "Ledger")


def test_a_request_is_read():
    line = {
        "model": "demo",
        "plan": {"method": "lora", "lora_targets": ["q_proj", "v_proj"]},
        "steps": 3,
        "text": "a",
    }
    assert parse_request(json.dumps(line)) == RunRequest(
        "demo", RunPlan(method="lora", lora_targets=("q_proj", "v_proj")), 3, None, "auto", "a"
    )
    assert parse_request('{"model": "demo"}') == RunRequest("demo", RunPlan())


@pytest.mark.parametrize(
    "line",
    [
        "[]", "{}", '{"model": 3}', '{"model": "demo", "stepps": 3}',
        '{"model": "demo", "steps": 0}', '{"model": "demo", "steps": true}',
        '{"model": "demo", "plan": {"batches": 3}}', '{"model": "demo", "plan": [1]}',
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused(line):
    with pytest.raises(UsageError):
        parse_request(line)


NAMES = ("NVIDIA A100-SXM4-80GB", "Tesla T4", "NVIDIA H200")


def three(**answers: Any) -> SimpleNamespace:
    """Three GPUs, in NVML's order, of 1, 2 and 3 GiB, without processes."""

    def number(handle: str) -> int:
        return int(handle.removeprefix("handle "))

    def memory(handle: str, version: int = 0) -> SimpleNamespace:
        return SimpleNamespace(total=(number(handle) + 1) << 30, used=0, free=0, reserved=0)

    told = {
        "nvmlDeviceGetCount": 3,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{str(number(handle)) * 3}-abc",
        "nvmlDeviceGetName": lambda handle: NAMES[number(handle)],
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetComputeRunningProcesses": [],
    }
    return fake_nvml(**(told | answers))


def sliced() -> SimpleNamespace:
    """The first GPU is divided into two slices of 10 GiB, of seven possible ones."""

    def piece(handle: str, number: int) -> str:
        if number not in (1, 4):
            raise NVMLError(6)
        return f"slice {number}"

    def of_slice(name: str, value: Callable[[str], Any]) -> Callable[..., Any]:
        whole = getattr(three(), name)
        return lambda handle, *_: value(handle) if "slice" in handle else whole(handle)

    return three(
        nvmlDeviceGetMigMode=lambda handle: [int(handle == "handle 0"), 0],
        nvmlDeviceGetMaxMigDeviceCount=7,
        nvmlDeviceGetMigDeviceHandleByIndex=piece,
        nvmlDeviceGetUUID=of_slice("nvmlDeviceGetUUID", lambda handle: f"MIG-{handle}"),
        nvmlDeviceGetName=of_slice("nvmlDeviceGetName", lambda handle: f"{NAMES[0]} MIG 1g.10gb"),
        nvmlDeviceGetMemoryInfo=of_slice(
            "nvmlDeviceGetMemoryInfo",
            lambda _: SimpleNamespace(total=10 << 30, used=0, free=0, reserved=0),
        ),
    )


def placed(
    wanted: str, visible: str | None, nvml: Any = None, torch_has_cuda: bool = True
) -> Placement:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return place(wanted, environ, nvml=nvml or three(), torch_has_cuda=torch_has_cuda)


@pytest.mark.parametrize(
    ("wanted", "visible", "index"),
    [
        ("auto", None, 0), ("cuda", None, 0), ("cuda:2", None, 2), ("cuda:0", "2,0", 2),
        ("cuda:1", "2,0", 0), ("cuda:1", "GPU-111,GPU-000-abc", 0), ("cuda:0", "1,7,0", 1),
    ],
)  # fmt: skip
def test_a_gpu_is_the_one_that_cuda_would_show(wanted, visible, index):
    found = placed(wanted, visible)
    assert (found.device.kind, found.device.index) == ("cuda", index)
    assert found.device.name == NAMES[index]
    assert found.device.capacity_bytes == (index + 1) << 30
    # It is then the only one: torch's first, whatever it was before.
    assert found.torch_device == "cuda:0"
    assert found.environment["CUDA_VISIBLE_DEVICES"] == found.uuid == f"GPU-{str(index) * 3}-abc"


@pytest.mark.parametrize(
    ("wanted", "visible", "uuid", "index", "capacity"),
    [
        ("auto", None, "MIG-slice 1", 0, 10),
        ("cuda:1", None, "MIG-slice 4", 0, 10),
        ("cuda:2", None, "GPU-111-abc", 1, 2),
        ("cuda:0", "0,1", "MIG-slice 1", 0, 10),
        ("cuda:1", "0,1", "GPU-111-abc", 1, 2),
        ("cuda:0", "MIG-slice 4", "MIG-slice 4", 0, 10),
    ],
)
def test_slices_stand_for_the_gpu_that_is_cut_into_them(wanted, visible, uuid, index, capacity):
    found = placed(wanted, visible, sliced())
    assert found.uuid == found.environment["CUDA_VISIBLE_DEVICES"] == uuid
    assert (found.device.index, found.device.capacity_bytes) == (index, capacity << 30)
    own = placed("cuda", "MIG-77")  # by its own name
    assert (own.uuid, own.device.index) == ("MIG-77", None)


@pytest.mark.parametrize(
    ("processes", "used", "shared"),
    [(0, 0, False), (1, 0, True), (0, 500 << 20, False), (0, 9 << 30, True)],
)
def test_a_gpu_is_shared_if_others_compute_on_it(processes, used, shared):
    """Also if a container hides the processes: what they hold is told all the same."""
    memory = SimpleNamespace(total=80 << 30, used=used, free=0, reserved=0)
    nvml = three(
        nvmlDeviceGetComputeRunningProcesses=[object()] * processes, nvmlDeviceGetMemoryInfo=memory
    )
    assert placed("cuda", None, nvml).shared is shared


def test_what_the_driver_reserves_is_no_memory_of_a_run():
    """As an idle H200 answered with driver 580.159; CUDA's total was its total less 615 MiB."""

    def answer(handle: str, version: int = 0) -> Any:
        total, reserved = 150_754_820_096, 644_939_776
        if version:
            return SimpleNamespace(total=total, reserved=reserved, used=0, free=total - reserved)
        return SimpleNamespace(total=total, used=reserved, free=total - reserved)

    nvml = three(nvmlDeviceGetMemoryInfo=answer)
    found = placed("cuda:2", None, nvml)
    assert (found.device.capacity_bytes, found.used_bytes) == (150_109_880_320, 0)
    assert read_devices(nvml)[2].memory_used == 0


@pytest.mark.parametrize(
    ("wanted", "visible", "has_cuda"),
    [
        ("cuda:3", None, True), ("cuda:1", "1,7,0", True), ("cuda", "", True),
        ("cuda:0", "-1", True), ("cuda", None, False),
    ],
)  # fmt: skip
def test_a_gpu_that_is_not_there_is_said(wanted, visible, has_cuda):
    with pytest.raises(NoGpu) as told:
        placed(wanted, visible, torch_has_cuda=has_cuda)
    assert told.value.exit_code == 4


def test_without_a_gpu_auto_is_the_cpu_and_no_device_is_a_mistake():
    for found in (placed("auto", ""), placed("auto", None, torch_has_cuda=False)):
        assert (found.device.kind, found.torch_device, found.environment) == ("cpu", "cpu", {})
    for wanted in ("gpu", "cuda:", "cuda:x", "cuda:-1", "mps"):
        with pytest.raises(UsageError):
            placed(wanted, None)


def test_segments_are_set_beside_what_a_user_has_set():
    assert allocator_settings("expandable", {}) == {
        "PYTORCH_ALLOC_CONF": "expandable_segments:True"
    }
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        before = {name: "max_split_size_mb:64,expandable_segments:True"}
        assert allocator_settings("native", before) == {
            "PYTORCH_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:False"
        }


def test_controls_hold_a_run_until_they_let_it_go():
    controls = Controls()
    states: list[str] = []
    controls.before_step(states.append)
    controls.say("pause")
    controls.say("step")
    controls.say("step")
    controls.before_step(states.append)
    controls.before_step(states.append)
    assert states == []  # two steps were allowed while it was paused
    threading.Timer(0.05, controls.say, ("resume",)).start()
    controls.before_step(states.append)
    assert states == ["paused", "running"]
    controls.say("pause")
    threading.Timer(0.05, controls.say, ("stop",)).start()
    with pytest.raises(Stopped):
        controls.before_step(states.append)
    with pytest.raises(Stopped):
        controls.check()


def test_the_ledger_is_what_counting_event_by_event_finds():
    numbers = random.Random(5)
    ledger = Ledger()
    alive: dict[int, tuple[int, str, Label]] = {}
    count = 0
    for phase in ("load", "forward", "backward", "optimizer", "between steps") * 3:
        events: list[tuple[Any, ...]] = [(PHASE, phase)]
        moments = [dict(alive)]
        died: dict[int, str] = {}
        for _ in range(numbers.randrange(40)):
            if alive and numbers.random() < 0.5:
                number = numbers.choice(list(alive))
                del alive[number]
                died[number] = phase
                events.append((FREE, number))
            else:
                count += 1
                label = Label("x", numbers.choice([None, None, Component.OPTIMIZER]))
                size = numbers.randrange(1, 3000)
                alive[count] = (rounded(size), phase, label)
                events.append((ALLOCATE, count, size, label))
            moments.append(dict(alive))
        closed = ledger.close(events)
        totals = [sum(size for size, _, _ in moment.values()) for moment in moments]
        assert (closed.peak, closed.end) == (max(totals), totals[-1])
        fullest = moments[totals.index(max(totals))]
        for moment, found, deaths in ((fullest, closed.peak_held, died), (alive, closed.held, {})):
            sums: dict[Component, int] = {}
            for number, (size, born, label) in moment.items():
                part = label.component or by_lifetime(born, deaths.get(number, ""))
                sums[part] = sums.get(part, 0) + size
            assert found == sums


REFUSED = [
    ({"kernels": "fused", "kbit_prep": "none"}, "cuda", "Unsloth"),
    ({"loss": "in-place"}, "cuda", "Unsloth"),
    ({"kernels": "liger"}, "cpu", "on a GPU only"),
    ({"loss": "fused"}, "cpu", "on a GPU only"),
    ({"attention": "flash"}, "cpu", "--attention sdpa"),
    ({"attention": "efficient"}, "cpu", "--attention sdpa"),
    ({"optimizer": "paged-adamw8bit"}, "cpu", "use the one without paged-"),
    ({"optimizer": "paged-adamw"}, "cpu", "use the one without paged-"),
    ({"sequence": 1}, "cpu", "--seq 2"),
    ({"method": "full", "sequence": 1}, "cuda", "--seq 2"),
    ({"optimizer": "adamw4bit"}, "cpu", "adamw8bit"),
    ({"method": "lora", "kbit_prep": "norms"}, "cpu", "--autocast"),
    ({"method": "qlora", "kbit_prep": "norms", "autocast": False}, "cpu", "--autocast"),
    ({"method": "inference", "quant": "nf4", "kbit_prep": "norms"}, "cuda", "--autocast"),
]


@over(("plan", "device", "word"), REFUSED)
def test_what_cannot_run_here_is_refused(plan, device, word):
    with pytest.raises(UsageError, match=word):
        check_runnable(resolve(RunPlan(**plan), "bf16"), device)


def test_plans_that_can_run_are_not_refused():
    for method in ("full", "lora", "qlora", "inference"):
        for device in ("cpu", "cuda"):
            check_runnable(resolve(RunPlan(method=method), "bf16"), device)
    check_runnable(resolve(RunPlan(attention="flash"), "bf16"), "cuda")
    check_runnable(resolve(RunPlan(optimizer="paged-adamw8bit"), "bf16"), "cuda")


def test_every_limit_is_of_an_option_of_a_plan():
    names = {field.name for field in fields(RunPlan)}
    assert {limit.option for limit in (*RUN_LIMITS, *TRACE_LIMITS)} <= names


UNTRACED = [
    ({"loss": "tiled"}, "--loss tiled (a trace runs stock and stock-4.48)"),
    ({"gpus": 2}, "more than one GPU"),
    (
        {"kernels": "liger", "loss": "fused"},
        "--loss fused (a trace runs stock and stock-4.48), fused kernels",
    ),
    ({"repeat_kv": True, "kernels": "torch"}, "keys and values repeated by hand"),
    ({"method": "inference", "generate": 17}, "more than 16 generated tokens"),
    ({"optimizer": "paged-adamw"}, "paged optimizer states"),
    ({"optimizer": "adamw4bit"}, "4-bit optimizer states, whose step is compiled"),
]


@over(("plan", "words"), UNTRACED)
def test_what_a_trace_does_not_show_is_refused(plan, words):
    with pytest.raises(UsageError) as refusal:
        check_traceable(resolve(RunPlan(**plan), "bf16"))
    assert f"which does not show {words}; leave" in str(refusal.value)


def test_of_several_gpus_one_is_run_and_it_is_said():
    plan = RunPlan(gpus=8, zero=3)
    alone, note = one_gpu(plan)
    assert alone == replace(plan, gpus=1, zero=0)
    assert "8 GPUs" in note
    assert one_gpu(RunPlan()) == (RunPlan(), "")


@pytest.mark.parametrize(
    ("plan", "device", "words"),
    [
        ({}, "cpu", ()),
        ({"method": "lora", "lora_rank": 4, "accumulation": 2}, "cpu", ()),
        ({"segments": "expandable"}, "cuda", ()),
        ({"segments": "expandable"}, "cpu", ("--segments (a CPU",)),
        ({"method": "full", "lora_rank": 64, "lora_dropout": 0.1}, "cpu",
         ("--lora-rank, --lora-dropout (only lora and qlora have adapters)",)),
        ({"method": "inference", "accumulation": 4, "optimizer": "sgd"}, "cuda",
         ("--accumulation (an inference has no gradients to accumulate)",
          "--optimizer (an inference has no optimizer)")),
        ({"generate": 4}, "cuda", ("--generate (a step",)),
        ({"method": "full", "reentrant": True, "autocast_dtype": "fp16"}, "cuda",
         ("--reentrant (nothing is checkpointed)", "--autocast-dtype (autocast is off)")),
        ({"torch": "2.5"}, "cuda", ("--torch (torch 2.13 is installed and runs)",)),
    ],
)  # fmt: skip
def test_options_that_change_nothing_are_said(plan, device, words):
    asked = RunPlan(**plan)
    told = unused_options(asked, resolve(replace(asked, torch="2.13"), "bf16"), device)
    assert bool(told) == bool(words)
    for word in words:
        assert word in told
    assert told.count(";") == max(0, len(words) - 1)
