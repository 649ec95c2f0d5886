"""What is said of runs on several GPUs: by which library's way they are counted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cpu_kernels import on_cpu
from small_models import config_of

from qtui_core.memory.estimate import estimate
from qtui_core.memory.plan import RunPlan
from qtui_core.memory.shape import ModelShape
from qtui_core.memory.sharing import sharing_notes

LLAMA = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 690,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}


def notes_of(shape, **chosen):
    plan = RunPlan(**({"method": "full", "sequence": 32} | chosen))
    return " ".join(sharing_notes(estimate(shape, plan, allocator=False)))


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"gpus": 2}, ["DistributedDataParallel", "25 MiB"]),
        ({"gpus": 2, "zero": 1}, ["ZeroRedundancyOptimizer", "DeepSpeed is not counted"]),
        ({"gpus": 2, "zero": 2}, ["reshard_after_forward=False", "DeepSpeed is not counted"]),
        ({"gpus": 2, "zero": 3}, ["FSDP2", "DeepSpeed is not counted", "over 2 GPUs"]),
        ({"gpus": 2, "tensor_parallel": 2}, ["tp_plan", "not counted"]),
        ({"gpus": 2, "pipeline_parallel": 2, "accumulation": 4}, ["1F1B", "all 4", "GPipe"]),
    ],
)
def test_every_way_is_named_with_what_is_not_counted(chosen, said):
    notes = notes_of(ModelShape.from_config(config_of("llama").to_dict()), **chosen)
    for words in said:
        assert words in notes


def test_of_one_gpu_and_of_copies_that_share_nothing_there_is_nothing_to_say():
    shape = ModelShape.from_config(config_of("llama").to_dict())
    assert not notes_of(shape)
    assert not notes_of(shape, method="inference", gpus=4)


@pytest.mark.slow
def test_a_further_micro_batch_in_flight_takes_what_is_said(tmp_path):
    """Stages of a real GPipe, with two micro batches and with six. The first stage has no norm and
    no output layer to keep inputs for, which the fullest imaginable one has."""
    described = {
        "config": LLAMA,
        "sequence": 256,
        "micro": [2, 6],
        "output": str(tmp_path / "rank"),
    }
    description = tmp_path / "job.json"
    description.write_text(json.dumps(described))
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", str(Path(__file__).with_name("pipeline_run.py"))),
            str(description),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    few, many = json.loads((tmp_path / "rank.0").read_text())
    plan = {"gpus": 2, "pipeline_parallel": 2, "sequence": 256, "dtype": "fp32"}
    with on_cpu():
        notes = notes_of(ModelShape.from_config(LLAMA), checkpointing=False, **plan)
    said = int(re.search(r"about ([\d,]+) bytes", notes)[1].replace(",", ""))
    assert said == pytest.approx((many - few) / 4, rel=0.05)
