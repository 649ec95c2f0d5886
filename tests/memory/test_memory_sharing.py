"""Notes on runs with several GPUs: which library's way of sharing is counted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cpu_kernels import on_cpu
from every import over
from processes import in_two_processes
from small_models import config_of

from qtui_core.memory.advice.report import parallel_notes
from qtui_core.memory.estimate import estimate
from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.memory.replay.record import ALLOCATE, FREE, Component
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.step.backbones import Batch, Model
from qtui_core.memory.step.run import RECEIVED, forward, in_flight, record_step, stream_of
from qtui_core.memory.step.sharding import stages_of
from qtui_core.memory.tape.tape import Tape
from tests.support.slow_timeline import live_peak

LLAMA = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 690,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}


def notes_of(shape, **chosen):
    plan = RunPlan(**({"method": "full", "sequence": 32} | chosen))
    return " ".join(parallel_notes(estimate(shape, plan, allocator=False)))


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"gpus": 2}, ["DistributedDataParallel", "25 MiB"]),
        ({"gpus": 2, "zero": 1}, ["ZeroRedundancyOptimizer", "DeepSpeed is not counted"]),
        ({"gpus": 2, "zero": 2}, ["reshard_after_forward=False", "DeepSpeed is not counted"]),
        ({"gpus": 2, "zero": 3}, ["FSDP2", "DeepSpeed is not counted", "over 2 GPUs"]),
        (
            {"gpus": 2, "zero": 3, "method": "qlora"},
            ["4-bit weights are not sharded", "FSDP1 refuses", "--quant-storage bf16 shards them"],
        ),
        (
            {"gpus": 2, "zero": 3, "method": "qlora", "quant_storage": "bf16"},
            ["packed into bf16, and so sharded", "block maxima", "are no parameters"],
        ),
        ({"gpus": 2, "tensor_parallel": 2}, ["tp_plan", "not counted"]),
        ({"gpus": 2, "pipeline_parallel": 2, "accumulation": 4}, ["1F1B, of 4", "pipelining"]),
    ],
)
def test_every_way_is_named_with_what_is_not_counted(chosen, said):
    notes = notes_of(shape_from_config(config_of("llama").to_dict()), **chosen)
    for words in said:
        assert words in notes


def test_of_one_gpu_and_of_copies_that_share_nothing_there_is_nothing_to_say():
    shape = shape_from_config(config_of("llama").to_dict())
    assert not notes_of(shape)
    assert not notes_of(shape, method="inference", gpus=4)


#: Schedules of torch, with numbers of micro batches. With fewer than are recorded, and with more.
PIPELINES = {
    "1F1B": {"schedule": "Schedule1F1B", "micro": [2, 3, 7], "checkpointing": False},
    "1F1B, checkpoints": {"schedule": "Schedule1F1B", "micro": [2, 3, 7], "checkpointing": True},
    "GPipe": {"schedule": "ScheduleGPipe", "micro": [2, 6], "checkpointing": False},
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The most bytes in a step on each of two stages, for each number of micro batches."""
    script = Path(__file__).with_name("pipeline_run.py")
    jobs = {name: {"config": LLAMA, "sequence": 128, **job} for name, job in PIPELINES.items()}
    return in_two_processes(script, jobs, tmp_path_factory.mktemp("jobs"))


def pipelined(shape, **chosen):
    plan = {"method": "full", "sequence": 128, "dtype": "fp32", "gpus": 2, "pipeline_parallel": 2}
    return resolve(RunPlan(**(plan | {"optimizer": "sgd"} | chosen)), shape.dtype)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1F1B", "1F1B, checkpoints"])
def test_both_stages_of_a_real_1f1b(name, measured):
    """The first stage keeps one more tensor of hidden states here: gloo's handle of what was sent
    first, which holds it, has a name until the step ends. That of NCCL lets go of it when it is
    waited for."""
    job = PIPELINES[name]
    shape = shape_from_config(LLAMA)
    for number, accumulation in enumerate(job["micro"]):
        plan = pipelined(shape, accumulation=accumulation, checkpointing=job["checkpointing"])
        stages = stages_of(shape, plan)
        assert [bool(stage.head) for stage in stages] == [False, True]
        with on_cpu():
            ours = [live_peak(record_step(stage, plan).events) for stage in stages]
        real = [peaks[number] for peaks in measured[name]]
        assert ours == pytest.approx(real, rel=0.01), accumulation


@pytest.mark.slow
def test_a_further_micro_batch_in_flight_takes_what_is_said(measured):
    """The first stage of a real GPipe, with two and with six micro batches."""
    few, many = measured["GPipe"][0]
    shape = shape_from_config(LLAMA)
    plan = pipelined(shape, accumulation=6, checkpointing=False)
    with on_cpu():
        notes = " ".join(parallel_notes(estimate(shape, plan, allocator=False)))
    said = int(re.search(r"([\d,]+) for each", notes)[1].replace(",", ""))
    assert said == pytest.approx((many - few) / 4, rel=0.05)


@over("family", ["llama", "gemma2", "gpt2", "opt", "qwen3_moe"])
@over("method", ["full", "qlora"])
def test_what_stages_send_has_the_type_that_is_said(family, method):
    shape = shape_from_config(config_of(family).to_dict())
    chosen = {"method": method, "accumulation": 2, "dtype": "bf16", "sequence": 32}
    plan = pipelined(shape, **chosen, optimizer="adamw")
    first, last = stages_of(shape, plan)
    tape = Tape()
    model = Model(first, plan)
    for weights in model.sweep(tape):
        weights.load(tape)
    for weights in model.sweep(tape):
        weights.raise_types(tape)
    for weights in model.sweep(tape):
        weights.adapt(tape)
    ids = tape.new(plan.tokens, "int64", RECEIVED)
    output, others = forward(model, Batch(ids, ids, None))
    assert not others
    assert output.dtype == stream_of(plan)
    assert output.elements == plan.tokens * shape.hidden
    assert len(first.layers) == len(last.layers) == len(shape.layers) // 2


def test_no_stage_has_more_micro_batches_at_once_than_a_step_is_made_of():
    shape = shape_from_config(config_of("llama").to_dict())
    for accumulation, held in ((1, 1), (2, 2), (6, 2)):
        plan = pipelined(shape, accumulation=accumulation)
        first, last = stages_of(shape, plan)
        assert (in_flight(first, plan), in_flight(last, plan)) == (held, 1)


def test_the_fuller_stage_is_shown_and_no_step_of_it_differs_from_the_others():
    """Steps of three and of thirty micro batches need the same memory except for their buffers."""
    shape = shape_from_config(config_of("llama").to_dict())
    few, many = (
        estimate(shape, pipelined(shape, accumulation=n, sequence=64), allocator=False)
        for n in (4, 30)
    )
    buffer = 64 * shape.hidden * 4
    assert many.peak_live_bytes - few.peak_live_bytes == 26 * buffer
    words = " ".join(parallel_notes(many))
    assert ("in flight" in words) != ("logits. " in words.replace("has the logits:", ""))


def test_what_torch_refuses_is_said():
    shape = shape_from_config(config_of("llama").to_dict())
    refused = notes_of(shape, gpus=2, pipeline_parallel=2)
    assert "1 micro batch (" in refused
    assert "--accumulation 2 or more" in refused
    assert "refuses" not in notes_of(shape, gpus=2, pipeline_parallel=2, accumulation=2)


def test_stages_that_are_not_cut_further_are_said_to_be_whole():
    pair = {"gpus": 2, "pipeline_parallel": 2, "accumulation": 2}
    gpt2 = shape_from_config(config_of("gpt2").to_dict())
    notes = notes_of(gpt2, **pair)
    assert ("last stage" in notes) == ("have the embeddings as well" in notes)


@pytest.mark.parametrize("generate", [0, 1, 40])
def test_a_stage_of_an_inference_receives_hidden_states_and_keeps_its_own_cache(generate):
    shape = shape_from_config(config_of("llama").to_dict())
    plan = RunPlan(method="inference", sequence=64, generate=generate)
    plan = resolve(plan, shape.dtype)
    half = resolve(
        RunPlan(method="inference", sequence=64, generate=generate, gpus=2, pipeline_parallel=2),
        shape.dtype,
    )
    whole = estimate(shape, plan, allocator=False)
    parts = [record_step(stage, half) for stage in stages_of(shape, half)]
    cached = [kept_cache(part.events) for part in parts]
    assert sum(cached) == kept_cache(whole.events)
    assert all(cached)


def kept_cache(events):
    """Bytes of keys and values that are alive at the end."""
    alive = {}
    for event in events:
        if event[0] == ALLOCATE and event[3].component is Component.CACHE:
            alive[event[1]] = event[2]
        elif event[0] == FREE:
            alive.pop(event[1], None)
    return sum(alive.values())
