"""Notes on how an estimate was made, for the reader of a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from qtui_core.errors import UsageError
from qtui_core.memory.devices.device import Calibration
from qtui_core.memory.devices.outside_torch import parse_version
from qtui_core.memory.estimate import Estimate
from qtui_core.memory.plan.run_plan import RunPlan, has_flash
from qtui_core.memory.plan.targets import adapters_of
from qtui_core.memory.shape.description import ModelDescription, stated_dtype
from qtui_core.memory.shape.model_shape import ModelShape, Moe
from qtui_core.memory.shape.modules import named_modules, parameter_count
from qtui_core.memory.shape.packings import STORED
from qtui_core.memory.step.device_events import holds_logits_back
from qtui_core.models.tensors import DESCRIBED_IN


def notes_of(
    model: ModelDescription, found: Estimate, asked: RunPlan | None, *, weighed: bool
) -> Iterator[str]:
    """The notes on an estimate. `asked` is the plan as it was typed, if known; `weighed` is whether
    changes of it were estimated."""
    shape, plan = found.shape, found.plan
    if not weighed:
        yield "Changes are not weighed: a trace covers one plan."
    if shape is not None:
        yield from shape.notes
        longest = shape.max_positions
        if longest is not None and plan.sequence + plan.generate > longest:
            yield f"The sequence is longer than the {longest:,} positions the model was made for."
    stated = stated_dtype(model.config) if shape is None else shape.dtype
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
    if plan.gpus > 1:
        from qtui_core.memory.advice.parallel_notes import parallel_notes

        yield from parallel_notes(found)
    if model.config.get("auto_map"):
        yield (
            "The model brings code of its own, which is never executed; the estimate is of the "
            f"class of transformers for {model.config.get('model_type')!r}."
        )
    if model.quantized and (shape is None or shape.packing is None):
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
        for layer in (*shape.encoder, *shape.layers)
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
