"""From an estimate to everything that a report of memory shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from qtui.report.memory_data import MemoryReport
from qtui_core.errors import ModelError
from qtui_core.memory.advice import Advice, advise, cures, worthwhile
from qtui_core.memory.compute import compute_of
from qtui_core.memory.curve import Peaks
from qtui_core.memory.device import Calibration
from qtui_core.memory.devices import DEVICES, Device
from qtui_core.memory.estimate import Estimate
from qtui_core.memory.fit import Largest, fit_on, fits
from qtui_core.memory.on_device import has_flash
from qtui_core.memory.plan import RunPlan
from qtui_core.memory.plan_rules import not_built_in
from qtui_core.memory.remedy import OnDevice, remedy, smallest_again
from qtui_core.memory.shape import ModelShape, Moe
from qtui_core.memory.workspaces import parse_version
from qtui_core.models import ModelSource


@dataclass(frozen=True)
class Described:
    """A model by the name it was asked for, where it was found, its config.json and its class.
    `quantized` is a checkpoint that is so already."""

    name: str
    location: str
    config: Mapping[str, Any]
    architecture: str
    quantized: bool


def described(source: ModelSource) -> Described:
    """An open model as reports tell of it. A config.json that does not name the type of the
    weights is given that of most of their bytes, as from_pretrained finds it out (`_get_dtype` in
    transformers/modeling_utils.py). Raises ModelError where there is no config.json."""
    if source.config is None:
        raise ModelError(
            f"{source.id} has no config.json, from which memory is estimated; give a folder or a "
            "hub id that has one."
        )
    return Described(
        name=source.id,
        location=source.location,
        config=_with_dtype(source.config, source),
        architecture=source.architecture or "a model",
        quantized=source.quantization is not None,
    )


#: Types of safetensors that a model computes in, as config.json names them.
_FLOATING: Final = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def _with_dtype(config: Mapping[str, Any], source: ModelSource) -> Mapping[str, Any]:
    if _stated_dtype(config) or source.quantization is not None:
        return config
    stored = next((_FLOATING[dtype] for dtype in source.dtypes if dtype in _FLOATING), None)
    return config if stored is None else {**config, "dtype": stored}


def _stated_dtype(config: Mapping[str, Any]) -> object:
    """What config.json says of the type of the weights; "auto" says nothing."""
    stated = config.get("dtype") or config.get("torch_dtype")
    return None if stated == "auto" else stated


def report_of(
    model: Described,
    found: Estimate,
    peaks: Callable[[RunPlan], Peaks] | None,
    *,
    here: Sequence[Device] = (),
    largest: Largest | None = None,
    asked: RunPlan | None = None,
    again: OnDevice | None = None,
) -> MemoryReport:
    """The report on an estimate of a model, on its device if it has one.

    `peaks` estimates changed plans, which are weighed by it; None where none can be, as after the
    trace of a family without a shape. The GPUs `here` are judged before those of the catalogue.
    `asked` is the plan as it was asked for, where that is known. `again` estimates a plan on a
    device as `found` was, which takes longer: what is said to make the run fit, and where it fits
    narrowly, is then held against it.
    """
    advice: tuple[Advice, ...] = () if peaks is None else advise(found, peaks)
    near = [] if found.device is None else [found.device]
    near += [device for device in here if device.name not in {each.name for each in near}]
    named = {device.name for device in near}
    attention = None if asked is None else asked.attention
    rows = fits(found, DEVICES, peaks, attention=attention)
    verdicts = (
        *(fit_on(found, device) for device in near),
        *(fit for fit in rows if fit.gpu not in named),
    )
    remedied = None
    if again is not None and found.device is None:
        verdicts = smallest_again(found, verdicts, DEVICES, again)
    elif again is not None and verdicts[0].verdict != "fits":
        remedied = remedy(found, verdicts[0], advice, again)
    return MemoryReport(
        model=model.name,
        location=model.location,
        architecture=model.architecture,
        estimate=found,
        fits=verdicts,
        asked=None if found.device is None else found.device.name,
        device=found.device,
        advice=worthwhile(advice, found.peak_allocated_bytes),
        cures=cures(found, advice),
        compute=None if found.shape is None else compute_of(found.shape, found.plan),
        largest=largest,
        remedy=remedied,
        notes=tuple(_notes(model, found, asked)),
    )


def _notes(model: Described, found: Estimate, asked: RunPlan | None) -> list[str]:
    notes: list[str] = []
    shape, plan = found.shape, found.plan
    if shape is None or not_built_in(shape, plan):
        notes.append("Changes are not weighed: a trace is of one plan.")
    if shape is not None:
        notes += shape.notes
        longest = shape.max_positions
        if longest is not None and plan.sequence + plan.generate > longest:
            notes.append(
                f"The sequence is longer than the {longest:,} positions the model was made for."
            )
    stated = _stated_dtype(model.config) if shape is None else shape.dtype
    if asked is not None and asked.dtype is None and not stated:
        notes.append(
            f"config.json does not say which type the weights are of, and {plan.dtype} is taken; "
            "of many older models they are float32: --dtype fp32 is then what loads."
        )
    if shape is not None:
        notes += _unquantized_experts(shape, plan)
    notes += _without_effect(asked, plan)
    if plan.gpus > 1:
        from qtui_core.memory.sharing import sharing_notes

        notes += sharing_notes(found)
    if model.config.get("auto_map"):
        notes.append(
            "The model brings code of its own, which is never executed; the estimate is of the "
            f"class of transformers for {model.config.get('model_type')!r}."
        )
    if model.quantized:
        notes.append(
            "The checkpoint is quantized already; the estimate is of its unquantized original, "
            "stored as the plan says."
        )
    known = None if found.device is None else found.device.calibration
    if known is not None and found.device is not None:
        notes.append(
            f"{found.device.name} is calibrated: context and workspaces were measured here on "
            f"{known.made}. {_since(known, plan)}".rstrip()
        )
    if plan.attention == "efficient" and not has_flash(found.device):
        name = "This GPU" if found.device is None else found.device.name
        notes.append(f"{name} has no flash attention: sdpa takes the efficient kernel there.")
    return notes


def _unquantized_experts(shape: ModelShape, plan: RunPlan) -> Iterator[str]:
    """Of weights that the reader takes to be quantized and that are not (see `is_quantized`)."""
    stacked = sum(
        prod(parameter.shape)
        for layer in (*shape.encoder, *shape.layers)
        if isinstance(layer.mlp, Moe)
        for parameter in layer.mlp.stacked
    )
    if plan.quant is not None and stacked:
        yield (
            f"The experts, {stacked / shape.parameters:.0%} of the parameters, are not quantized: "
            "the classes keep those of a layer stacked in one tensor, and bitsandbytes packs "
            "linear layers."
        )


def _without_effect(asked: RunPlan | None, plan: RunPlan) -> Iterator[str]:
    """What was asked for and is nothing to the method."""
    if asked is None:
        return
    if asked.generate and plan.trains:
        yield f"--generate {asked.generate} changes nothing: a step of training generates nothing."
    if asked.accumulation > 1 and not plan.trains:
        yield (
            f"--accumulation {asked.accumulation} changes nothing: an inference has no gradients "
            "to accumulate."
        )
    if asked.checkpointing and not plan.trains:
        yield "--checkpointing changes nothing: an inference keeps nothing for a backward pass."


def _since(known: Calibration, plan: RunPlan) -> str:
    """What of a calibration does not hold for a plan."""
    if known.torch != parse_version(plan.torch):
        version = ".".join(map(str, known.torch))
        return f"Workspaces are those of torch {plan.torch}: it was measured with {version}."
    if known.context is None:
        return "The driver did not tell the context, which is a published figure."
    return ""
