"""One of the stages of a real pipeline of torch on CPUs: every storage's bytes.

    torchrun --nproc-per-node 2 pipeline_run.py JOBS.json

A job says `config`, `sequence`, `checkpointing`, `output`, `schedule` (the name of its class) and
`micro`, numbers of micro batches of one sequence. Each rank writes `output`.RANK: the most bytes
alive in a step, for each of these numbers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from parallel_run import Storages, main
from torch import nn
from torch.distributed import pipelining
from torch.utils.checkpoint import checkpoint


class Stage(nn.Module):
    """A share of the layers of a Llama, with the embedding before the first of them and the head
    after the last."""

    def __init__(self, model, rank, stages, checkpointing):
        super().__init__()
        self.checkpointing = checkpointing
        base = model.model
        own = len(base.layers) // stages
        self.layers = base.layers[rank * own : (rank + 1) * own]
        self.before = base.embed_tokens if rank == 0 else None
        self.after = nn.Sequential(base.norm, model.lm_head) if rank == stages - 1 else None
        self.rotary = base.rotary_emb

    def forward(self, hidden):
        if self.before is not None:
            hidden = self.before(hidden)
        positions = torch.arange(hidden.shape[1])[None]
        tables = self.rotary(hidden, positions)
        for layer in self.layers:
            given = {"position_embeddings": tables, "position_ids": positions}
            if self.checkpointing:
                hidden = checkpoint(layer, hidden, use_reentrant=False, **given)
            else:
                hidden = layer(hidden, **given)
        return hidden if self.after is None else self.after(hidden)


def loss_of(logits, labels):
    return nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def most_in_a_step(stage, rank, job, micro):
    part = pipelining.PipelineStage(stage, rank, dist.get_world_size(), torch.device("cpu"))
    kind = getattr(pipelining, job["schedule"])
    schedule = kind(part, n_microbatches=micro, loss_fn=loss_of)
    storages = Storages()
    storages.watch([*stage.parameters(), *stage.buffers()])
    with storages:
        ids = torch.randint(0, job["config"]["vocab_size"], (micro, job["sequence"]))
        found = []
        for _ in range(5):
            storages.phase()
            schedule.step(*((ids,) if rank == 0 else ()), target=ids, return_outputs=False)
            found.append(storages.phase())
            stage.zero_grad()
    return min(found[1:])  # what a thread of gloo lets go of late only adds


def most_in_steps(job):
    rank, stages = dist.get_rank(), dist.get_world_size()
    config = transformers.AutoConfig.for_model(**job["config"])
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
    stage = Stage(model, rank, stages, job["checkpointing"])
    del model
    return [most_in_a_step(stage, rank, job, n) for n in job["micro"]]


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), most_in_steps)
