"""Notes on how an estimate was made, for the reader of a report; among them how the run is divided
over several GPUs: which library's method is estimated, and what other methods would add."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Final

from qtui_core.errors import UsageError
from qtui_core.memory.devices.device import Calibration, parse_version
from qtui_core.memory.dtypes import FLOATING
from qtui_core.memory.estimate import Estimate
from qtui_core.memory.plan.run_plan import RunPlan, has_flash
from qtui_core.memory.plan.targets import adapters_of
from qtui_core.memory.replay.record import Component, Phase
from qtui_core.memory.shape.config_reader import Config, stored_dtype
from qtui_core.memory.shape.description import ModelDescription
from qtui_core.memory.shape.model_shape import ModelShape, Moe, named_modules, parameter_count
from qtui_core.memory.shape.packed import EXPERTS_UNKNOWN
from qtui_core.memory.shape.packings import STORED
from qtui_core.memory.shape.weights import tensors_of
from qtui_core.memory.step.device_events import holds_logits_back
from qtui_core.memory.step.sharding import is_sharded, stages_of
from qtui_core.memory.tape.blocks.losses import LOGITS
from qtui_core.models.tensors import DESCRIBED_IN
from qtui_core.quantities import format_bytes


def notes_of(
    model: ModelDescription, found: Estimate, asked: RunPlan | None, *, weighed: bool, why: str
) -> Iterator[str]:
    """The notes on an estimate. `asked` is the plan as it was typed, if known; `weighed` is whether
    changes of it were estimated; `why` says why it was traced."""
    shape, plan = found.shape, found.plan
    if why and found.origin == "trace":
        yield f"{why} The class of the installed transformers ran on tensors without values."
    if not weighed:
        yield "Changes are not weighed: a trace covers one plan."
    if shape is not None and shape.known == "assumed":
        low, high = found.process_bytes - found.spread[0], found.process_bytes + found.spread[1]
        yield (
            f"{shape.why} The nearest kind of decoder stands in for it: weights are counted from "
            f"{'the headers' if model.parameters else 'config.json'}, and activations are assumed, "
            f"so the process takes {format_bytes(low)} to {format_bytes(high)}."
        )
    if shape is not None:
        yield from _of_storage(shape, plan)
        longest = shape.max_positions
        if longest is not None and plan.sequence + plan.generate > longest:
            yield f"The sequence is longer than the {longest:,} positions the model was made for."
    stated = stored_dtype(Config(model.config)) if shape is None else shape.dtype
    if asked is not None and asked.dtype is None and not stated:
        yield (
            f"{model.config.get(DESCRIBED_IN, 'config.json')} does not say which type "
            f"the weights are of, and {plan.dtype} is taken; of many older models they are "
            "float32: --dtype fp32 is then what loads."
        )
    if shape is not None:
        yield from _unquantized_experts(shape, plan)
        yield from _idle_targets(shape, plan)
    if asked is not None:
        for option in asked.without_effect(plan):
            written = option.written(getattr(asked, option.name))
            yield f"{written} changes nothing: {option.idle}."
    yield from _logits_copy(found)
    yield from parallel_notes(found)
    if model.config.get("auto_map"):
        yield (
            "The model brings code of its own, which is never executed; the estimate is of the "
            f"class of transformers for {model.config.get('model_type')!r}."
        )
    if model.quantization and (shape is None or shape.packing is None):
        yield (
            "The checkpoint is quantized already; the estimate is of its unquantized original, "
            "stored as the plan says."
        )
    known = None if found.device is None else found.device.calibration
    if known is not None and found.device is not None:
        yield (
            f"{found.device.name} is calibrated: context and workspaces were measured here on "
            f"{known.made}. {_since(known, plan)}".rstrip()
        )
    if plan.attention == "efficient" and not has_flash(found.device):
        name = "This GPU" if found.device is None else found.device.name
        yield f"{name} has no flash attention: sdpa takes the efficient kernel there."


def _of_storage(shape: ModelShape, plan: RunPlan) -> Iterator[str]:
    """The notes of a shape; those on packed weights only if the plan keeps them."""
    packing = shape.packing
    if packing is None or shape.packing_under(plan.quant):
        yield from shape.notes
        return
    yield from (note for note in shape.notes if note not in (packing.note, EXPERTS_UNKNOWN))
    yield f"The checkpoint is stored as {packing.title}" + (
        f", over which --method {plan.method} trains nothing: the estimate is of its weights "
        "unpacked, as before it was quantized."
        if plan.trains
        else ": the estimate is of its weights unpacked."
    )


def _logits_copy(found: Estimate) -> Iterator[str]:
    """A note on the copy of the logits that an in-place cross entropy may leave in the allocator's
    cache."""
    plan, nbytes = found.plan, found.logits_copy_bytes
    if not nbytes:
        return
    counted = "is counted" if holds_logits_back(found.shape, plan) else "is not counted"
    yield (
        f"With --loss {plan.loss} the allocator may keep one float32 copy of the logits, "
        f"{nbytes:,} bytes, that the step does not use. It {counted} here, and is part of the "
        "range of the process either way: runs of Mistral-7B and Llama-3-8B on an A100 with "
        "transformers 4.44 to 4.48 kept it; Mistral-7B with 4.43 and PowerLM-3b (Granite) with "
        "4.45 did not. What decides is not known."
    )


def _unquantized_experts(shape: ModelShape, plan: RunPlan) -> Iterator[str]:
    """A note on experts that are not quantized, though one would expect it
    (`WeightStorage.is_quantized`)."""
    stacked = sum(
        prod(parameter.shape)
        for layer in shape.layers
        if isinstance(layer.mlp, Moe)
        for parameter in layer.mlp.stacked
    )
    if plan.quantized and plan.quant != STORED and stacked:
        yield (
            f"The experts, {stacked / parameter_count(shape):.0%} of the parameters, are not "
            "quantized: the classes keep those of a layer stacked in one tensor, and bitsandbytes "
            "packs linear layers."
        )


def _idle_targets(shape: ModelShape, plan: RunPlan) -> Iterator[str]:
    """A note on target names that match no module: peft ignores them silently if others match."""
    if not plan.adapts or len(plan.lora_targets) < 2:
        return
    modules = [*named_modules(shape)]
    if shape.head is not None:
        modules.append((shape.head.name, shape.head))
    names = {name for name, _ in modules}

    def ranks(targets: tuple[str, ...]) -> list[int]:
        changed = replace(plan, lora_targets=targets)
        adapters = adapters_of(shape, changed)
        return [adapters.rank_on(name, module) for name, module in modules]

    for target in plan.lora_targets:
        if any(name == target or name.endswith(f".{target}") for name in names):
            continue
        others = tuple(each for each in plan.lora_targets if each != target)
        try:
            idle = ranks(others) == ranks(plan.lora_targets)
        except UsageError:  # another target requires this name: it is the name of experts
            continue
        if idle:
            yield f"No module is named {target}: it gets no adapter, and peft would not say so."


def _since(known: Calibration, plan: RunPlan) -> str:
    """Which parts of a calibration do not apply to a plan."""
    if known.torch != parse_version(plan.torch):
        version = ".".join(map(str, known.torch))
        return f"Workspaces are those of torch {plan.torch}: it was measured with {version}."
    if known.context is None:
        return "The driver did not tell the context, which is a published figure."
    return ""


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
        yield (
            "Tensor parallel is the plan of the class in transformers (tp_plan): heads, the MLP, "
            "and the vocabulary of embedding and output layer are divided, norms are whole. "
            "Families without such a plan keep embedding and output layer whole. Logits are "
            "gathered on every GPU; what GPUs add up inside of layers is not counted, one tensor "
            "of hidden states."
        )
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
    last = any(term.name == LOGITS.what for term in found.terms)
    if plan.trains:
        last = any(phase.name == Phase.LOSS for phase in found.phases)
    flying = min(plan.pipeline_parallel, plan.accumulation)
    longest = -(-len(shape.layers) // plan.pipeline_parallel)
    which, other = ("last stage, which has the logits", "first")
    if not last:
        which, other = "first stage", "last"
        if plan.trains and flying > 1:
            which += f", which has {flying} micro batches in flight"
    shown = f"The estimate is of its {which}: it holds more than the {other}."
    if last and stages_of(shape, plan)[-1].embeddings:
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
    # Activations when the first backward pass begins, of each micro batch in flight.
    begun = next((s.start for s in found.timeline.spans if s.name == Phase.BACKWARD), None)
    waiting = {} if begun is None else found.timeline.held(begun)
    each = waiting.get(Component.ACTIVATIONS, 0) // flying
    if not last and plan.accumulation > flying and each:
        more = (plan.accumulation - flying) * each
        yield (
            f"Under GPipe all {plan.accumulation} wait at once on the first stage: about {more:,} "
            f"bytes more, {each:,} for each."
        )
