"""Sentences on how a run is divided over several GPUs: which library's method is estimated, and
what other methods would add."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qtui_core.memory.dtypes import FLOATING
from qtui_core.memory.estimate import Estimate
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import Component, Phase
from qtui_core.memory.replay.timeline import composition
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.shape.weights import tensors_of
from qtui_core.memory.step.partition import stages_of
from qtui_core.memory.step.sharding import is_sharded
from qtui_core.memory.tape.blocks.loss.loss import LOGITS

#: Elements of a bucket of DeepSpeed (runtime/zero/config.py: reduce_bucket_size,
#: allgather_bucket_size), and bytes of its own float32 copy of a 16-bit weight (stage_1_and_2.py:
#: single_partition_of_fp32_groups).
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


def parallel_notes(found: Estimate) -> Iterator[str]:
    """A sentence for each way in which an estimate divides its run over GPUs; none for one GPU."""
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
    if plan.zero == 3 and plan.four_bits and found.shape is not None:
        yield _four_bits(found.shape, plan)
    if plan.tensor_parallel > 1:
        yield _tensor_parallel(plan)
    if plan.pipeline_parallel > 1 and found.shape is not None:
        yield from _pipeline(found, found.shape)


def _four_bits(shape: ModelShape, plan: RunPlan) -> str:
    """Which bytes of 4-bit weights ZeRO-3 does not shard, and why."""
    whole: dict[Component, int] = {}
    for tensor in tensors_of(shape, plan):
        if not is_sharded(tensor, plan):
            whole[tensor.component] = whole.get(tensor.component, 0) + tensor.bytes
    if plan.quant_storage not in FLOATING:
        return (
            f"4-bit weights are not sharded: of the model's {whole[Component.WEIGHTS]:,} bytes of "
            "them each GPU has those of its layers whole. bitsandbytes packs them into uint8 "
            "(bnb_4bit_quant_storage), which accelerate leaves out of FSDP2 and FSDP1 refuses; "
            "--quant-storage bf16 shards them."
        )
    return (
        f"4-bit weights are packed into {plan.quant_storage}, and so sharded. Their block maxima "
        f"and tables, {whole[Component.QUANTIZATION]:,} bytes in the model, are no parameters: "
        "each GPU has those of its layers whole."
    )


def _pipeline(found: Estimate, shape: ModelShape) -> Iterator[str]:
    plan = found.plan
    last, flying = _is_last(found), min(plan.pipeline_parallel, plan.accumulation)
    longest = -(-len(shape.layers) // plan.pipeline_parallel)
    which, other = ("last stage, which has the logits", "first")
    if not last:
        which, other = "first stage", "last"
        if plan.trains and flying > 1:
            which += f", which has {flying} micro batches in flight"
    shown = f"The estimate is of its {which}: it holds more than the {other}."
    if shape.encoder:
        shown = "The estimate is of one stage with the whole encoder, the embedding and the logits."
    elif last and stages_of(shape, plan)[-1].embeddings:
        shown += " It is assumed to have the embeddings as well."
    yield (
        f"The pipeline is torch.distributed.pipelining with stages of {longest} layers at most. "
        f"{shown}"
    )
    if not plan.trains:
        return
    plural = "es" if plan.accumulation > 1 else ""
    yield (
        f"Its schedule is Schedule1F1B, of {plan.accumulation} micro batch{plural} "
        "(--accumulation), with return_outputs=False: else the last stage keeps the logits of all."
    )
    if plan.accumulation < plan.pipeline_parallel:
        yield (
            "torch refuses fewer micro batches than stages: --accumulation "
            f"{plan.pipeline_parallel} or more."
        )
    each = _of_one(found, 1 if last else flying)
    if not last and plan.accumulation > flying and each:
        more = (plan.accumulation - flying) * each
        yield (
            f"Under GPipe all {plan.accumulation} wait at once on the first stage: about {more:,} "
            f"bytes more, {each:,} for each."
        )


def _is_last(found: Estimate) -> bool:
    """Whether the pipeline stage of an estimate is the one with the head."""
    if found.plan.trains:
        return any(phase.name == Phase.LOSS for phase in found.phases)
    return any(term.name == LOGITS.what for term in found.terms)


def _tensor_parallel(plan: RunPlan) -> str:
    return (
        "Tensor parallel is the plan of the class in transformers (tp_plan): heads, the MLP, and "
        "the vocabulary of embedding and output layer are divided, norms are whole. Families "
        "without such a plan keep embedding and output layer whole. Logits are gathered on every "
        "GPU; what GPUs add up inside of layers is not counted, one tensor of hidden states."
    )


def _of_one(found: Estimate, flying: int) -> int:
    """Bytes of activations for each micro batch in flight when the first backward pass begins."""
    begun = next((s.start for s in found.timeline.spans if s.name == Phase.BACKWARD), None)
    if begun is None:
        return 0
    waiting = composition(found.timeline.alive_at(begun)).get(Component.ACTIVATIONS, 0)
    return waiting // flying
