"""From an estimate to everything that a report of memory shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from qtui.report.memory.data import MemoryReport
from qtui.report.memory.notes import notes_of, stated_dtype
from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.memory.advice.changes import Advice, advise, cures, worthwhile
from qtui_core.memory.advice.fit import Largest, fit_on, fits
from qtui_core.memory.advice.remedy import OnDevice, remedy, smallest_again
from qtui_core.memory.compute.totals import compute_of
from qtui_core.memory.devices.finding import DEVICES, Device
from qtui_core.memory.estimate import Estimate
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.curve import Peaks
from qtui_core.memory.shape.headers import held_against
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.shape.packed_modules import held_by_files
from qtui_core.models import ModelSource
from qtui_core.models.tensors import DESCRIBED_IN, Role, TensorInfo


@dataclass(frozen=True)
class Described:
    """A model by the name it was asked for, where it was found, its config.json and its class.
    `quantized` is a checkpoint that is so already. `stored` has the sizes of the tensors that the
    headers show, by name: of a GGUF file all (`gguf`), else those stored as plain values;
    `tensors` are all of a checkpoint that is quantized."""

    name: str
    location: str
    config: Mapping[str, Any]
    architecture: str
    quantized: bool
    stored: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False)
    gguf: bool = False
    tensors: Mapping[str, TensorInfo] = field(default_factory=dict, repr=False)

    def read_shape(self) -> ModelShape:
        """Its shape, held against the headers. Raises what ModelShape.from_config does."""
        shape = held_by_files(ModelShape.from_config(self.config), self.tensors)
        return held_against(shape, self.stored, gguf=self.gguf)


def described(source: ModelSource) -> Described:
    """An open model as reports tell of it. A config.json that does not name the type of the
    weights is given that of most of their bytes, as from_pretrained finds it out (`_get_dtype` in
    transformers/modeling_utils.py). Raises ModelError where there is no config.json."""
    if source.config is None:
        raise ModelError(
            f"{source.id} has no config.json, from which memory is estimated; give a folder or a "
            "hub id that has one."
        )
    gguf = DESCRIBED_IN in source.config
    return Described(
        name=source.id,
        location=source.location,
        config=_with_dtype(source.config, source),
        architecture=source.architecture or "a model",
        quantized=source.quantization is not None,
        stored={
            name: info.shape
            for name, info in source.tensors.items()
            if gguf or info.role is Role.VALUES
        },
        gguf=gguf,
        tensors={} if gguf or source.quantization is None else source.tensors,
    )


#: Types of safetensors that a model computes in, as config.json names them.
_FLOATING: Final = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def _with_dtype(config: Mapping[str, Any], source: ModelSource) -> Mapping[str, Any]:
    if stated_dtype(config) or source.quantization is not None:
        return config
    stored = next((_FLOATING[dtype] for dtype in source.dtypes if dtype in _FLOATING), None)
    return config if stored is None else {**config, "dtype": stored}


def report_of(
    model: Described,
    found: Estimate,
    peaks: Callable[[RunPlan], Peaks] | None,
    *,
    here: Sequence[Device] = (),
    largest: Largest | None = None,
    asked: RunPlan | None = None,
    wanted: RunPlan | None = None,
    again: OnDevice | None = None,
) -> MemoryReport:
    """The report on an estimate of a model, on its device if it has one.

    `peaks` estimates changed plans, which are weighed by it; None where none can be, as after the
    trace of a family without a shape. The GPUs `here` are judged before those of the catalogue.
    `asked` is the plan as it was asked for, where that is known, and `wanted` the same with nothing
    left open, before the device had its say. `again` estimates a plan on a
    device as `found` was, which takes longer: what is said to make the run fit, and where it fits
    narrowly, is then held against it.
    """
    advice: tuple[Advice, ...] = () if peaks is None else advise(found, peaks)
    near = [] if found.device is None else [found.device]
    near += [device for device in here if device.name not in {each.name for each in near}]
    named = {device.name for device in near}
    rows = fits(found, DEVICES, peaks, wanted=wanted)
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
        notes=tuple(notes_of(model, found, asked)),
    )
