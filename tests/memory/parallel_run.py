"""One of the processes that share real steps on CPUs: every storage's bytes, phase by phase.

    torchrun --nproc-per-node 2 parallel_run.py JOBS.json

They are measured one after another, since processes take longer to start than to make steps. A job
says `config`, `layers` (their name in the model), `batch`, `sequence`, `checkpointing`,
`method`, `output` and `kind`: "fsdp" (FSDP2), "ddp", "zero1" (DDP and ZeroRedundancyOptimizer) or
"tp" (the tensor parallelism of transformers).
Each rank writes `output`.RANK: the most bytes alive in each phase of a step, and what is alive
between steps. A thread of gloo that a busy machine keeps waiting lets go of what it sent a moment
late, which only ever adds: of many steps the least of each phase is the step's own. (Under FSDP,
with six busy processes on two cores, four steps of ten were more than the least.)
"""

from __future__ import annotations

import gc
import json
import sys
import weakref
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Storages(TorchDispatchMode):
    """All storages seen, by what they hold now: FSDP empties and refills them in place. They are
    counted as they come, change and go, and at the end of each phase all of them again."""

    def __init__(self):
        super().__init__()
        self.known = {}
        self.live = 0
        self.peak = 0

    def __enter__(self):
        resize = self.resize = torch.UntypedStorage.resize_

        def counted(storage, size):
            result = resize(storage, size)
            if storage._cdata in self.known:
                self.count(storage)
            return result

        torch.UntypedStorage.resize_ = counted
        return super().__enter__()

    def __exit__(self, *raised):
        torch.UntypedStorage.resize_ = self.resize
        return super().__exit__(*raised)

    def watch(self, tree):
        for leaf in tree_leaves(tree):
            if isinstance(leaf, DTensor):
                leaf = leaf._local_tensor
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
                self.count(leaf.untyped_storage())

    def count(self, storage):
        key, size = storage._cdata, rounded(storage)
        if key not in self.known:
            self.known[key] = [weakref.ref(storage, lambda _: self.forget(key)), 0]
        entry = self.known[key]
        self.live += size - entry[1]
        entry[1] = size

    def forget(self, key):
        self.live -= self.known.pop(key)[1]

    def now(self):
        assert self.live == sum(rounded(known()) for known, _ in list(self.known.values()))
        return self.live

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.watch((args, kwargs, result))
        self.peak = max(self.peak, self.live)
        return result

    def phase(self):
        """The most bytes since the last call."""
        peak, self.peak = max(self.peak, self.now()), self.now()
        return peak


def rounded(storage):
    return -(-storage.nbytes() // 512) * 512


def main(jobs, measure):
    dist.init_process_group("gloo")
    for job in jobs:
        torch.manual_seed(0)
        Path(f"{job['output']}.{dist.get_rank()}").write_text(json.dumps(measure(job)))
        gc.collect()
    dist.destroy_process_group()


def most_of_each_phase(job):
    config = transformers.AutoConfig.for_model(**job["config"])
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if job["kind"] == "tp":
        model = cut(model, f"{job['output']}.model")
    if job["method"] == "qlora":
        from qtui_core.memory.plan.run_plan import RunPlan
        from qtui_core.training.model.quantized import quantize_linears

        storage = job["quant_storage"]
        plan = RunPlan(quant="nf4-dq", quant_storage=storage, dtype="fp32", autocast_dtype="bf16")
        quantize_linears(model, plan, "cpu")
    if job["method"] in ("lora", "qlora"):
        import peft

        model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules="all-linear"))
    if job["checkpointing"]:
        model.gradient_checkpointing_enable()
    model.train()
    if job["kind"] == "fsdp":
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        inner = model if job["method"] == "full" else model.get_base_model()
        # As accelerate does (fsdp2_prepare_model).
        whole = {p for p in model.parameters() if not p.is_floating_point()}
        for layer in inner.get_submodule(job["layers"]):
            fully_shard(layer, mesh=mesh, ignored_params=whole)
        fully_shard(model, mesh=mesh, ignored_params=whole)
    elif job["kind"] != "tp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = optimizer_of(model, job["kind"])
    storages = Storages()
    storages.watch([*model.parameters(), *model.buffers()])
    found = []
    with storages:
        ids = torch.randint(0, config.vocab_size, (job["batch"], job["sequence"]))
        for _ in range(18 if job["kind"] == "fsdp" else 6):
            storages.phase()
            step = {}
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            step["forward"] = storages.phase()
            loss.backward()
            step["backward"] = storages.phase()
            del loss
            optimizer.step()
            step["optimizer"] = storages.phase()
            optimizer.zero_grad()
            storages.phase()
            step["between steps"] = storages.now()
            found.append(step)
    # DDP rebuilds its buckets after the first step, and an optimizer its states.
    return {phase: min(step[phase] for step in found[2:]) for phase in found[0]}


def cut(model, folder):
    """The model with this process's part of its weights, in storages of their own: on a CPU the
    parts are views of whole weights, which they are not on a GPU."""
    if dist.get_rank() == 0:
        model.save_pretrained(folder)
    dist.barrier()
    model = type(model).from_pretrained(folder, tp_plan="auto", dtype=torch.float32)
    for parameter in model.parameters():
        if isinstance(parameter, DTensor):
            parameter._local_tensor = parameter._local_tensor.detach().clone()
    return model


def optimizer_of(model, kind):
    """A list of tensors must not mix those that are cut with others."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if kind == "zero1":
        adamw = {"optimizer_class": torch.optim.AdamW, "foreach": True}
        return ZeroRedundancyOptimizer(trained, lr=1e-3, **adamw)
    kinds = {type(p): [] for p in trained}
    for parameter in trained:
        kinds[type(parameter)].append(parameter)
    return torch.optim.AdamW([{"params": alike} for alike in kinds.values()], foreach=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), most_of_each_phase)
