"""What a run on several GPUs is taken to be, in words: which library's way is counted, and what of
other ways is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qtui_core.memory.estimate import Estimate
from qtui_core.memory.plan import RunPlan
from qtui_core.memory.record import Component, Phase
from qtui_core.memory.timeline import composition

#: Elements of a bucket of DeepSpeed (runtime/zero/config.py: reduce_bucket_size,
#: allgather_bucket_size), and bytes of its own float32 copy of a 16-bit weight
#: (stage_1_and_2.py: single_partition_of_fp32_groups).
_DEEPSPEED_BUCKET: Final = 500_000_000
_DEEPSPEED_MASTER: Final = 4

_ZERO: Final = {
    0: "DistributedDataParallel of torch, whose buckets of 25 MiB are a second copy of all "
    "gradients (gradient_as_bucket_view=False).",
    1: "DistributedDataParallel with ZeroRedundancyOptimizer of torch: weights, gradients and "
    "their buckets are whole on every GPU.",
    2: "whole weights, and gradients that are reduced to shards layer by layer, as fully_shard of "
    "torch does it. fully_shard(reshard_after_forward=False) itself has only shards of the weights "
    "between steps, and the whole ones besides from the forward pass on.",
    3: "fully_shard of torch (FSDP2), each layer a unit and what is outside of layers one more.",
}


def sharing_notes(found: Estimate) -> Iterator[str]:
    """A sentence for each way in which GPUs share the run of an estimate; none for one GPU."""
    plan = found.plan
    if plan.data_parallel > 1 and (plan.trains or plan.zero):
        yield f"Data parallel is taken to be {_ZERO[plan.zero]}"
    if plan.zero:
        master = plan.data_parallel
        yield (
            f"DeepSpeed is not counted: it also keeps a float32 copy of 16-bit weights "
            f"({_DEEPSPEED_MASTER} bytes for each trained parameter, over {master} GPUs), flat "
            f"copies, and buckets of {_DEEPSPEED_BUCKET:,} elements."
        )
    if plan.tensor_parallel > 1:
        yield _tensor_parallel(plan)
    if plan.pipeline_parallel > 1:
        yield (
            "A stage of the pipeline is taken to have as many layers as the longest, with "
            "embedding and output layer both, and one micro batch at a time."
        )
        kept = _in_flight(found)
        if kept:
            yield (
                f"Schedules keep more in flight, which is not counted: each further micro batch "
                f"about {kept:,} bytes of activations. The first stage has up to "
                f"{plan.pipeline_parallel} under 1F1B and all {plan.accumulation} of a step under "
                f"GPipe; torch's schedules also hold the logits of all on the last stage."
            )


def _tensor_parallel(plan: RunPlan) -> str:
    return (
        "Tensor parallel is the plan of the class in transformers (tp_plan): heads, the MLP, and "
        "the vocabulary of embedding and output layer are divided, norms are whole. Families "
        "without such a plan keep embedding and output layer whole. Logits are gathered on every "
        "GPU; what GPUs add up inside of layers is not counted, one tensor of hidden states."
    )


def _in_flight(found: Estimate) -> int:
    """Bytes of activations that wait when the last backward pass begins: those of one micro
    batch."""
    begun = [span.start for span in found.timeline.spans if span.name == Phase.BACKWARD]
    if not begun:
        return 0
    return composition(found.timeline.alive_at(begun[-1])).get(Component.ACTIVATIONS, 0)
