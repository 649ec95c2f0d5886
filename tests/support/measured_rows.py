"""Memory that others measured on GPUs, with each run described as a plan."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from qtui_core.memory.devices.device import Device, find_device
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.shape.model_shape import ModelShape

MEASURED = Path(__file__).parent.parent / "memory" / "measured"
MIB = 1 << 20


@dataclass(frozen=True)
class MeasuredRow:
    """One run, in bytes; None for what was not measured.

    `resident` was read before the first step on the T4 and after the last on the A100.
    """

    id: str
    model: str
    shape: ModelShape
    plan: RunPlan
    device: Device
    resident: int | None
    allocated: int
    reserved: int | None
    process: int | None
    stepped: bool


@cache
def shape_named(model: str) -> ModelShape:
    name = model.rpartition("/")[2]
    return shape_from_config(json.loads((MEASURED / f"{name}.json").read_text()))


@cache
def measured_rows() -> tuple[MeasuredRow, ...]:
    with (MEASURED / "measured_memory.csv").open() as file:
        return tuple(_row(cells) for cells in csv.DictReader(file))


def _row(cells: dict[str, str]) -> MeasuredRow:
    def whole(text: str, unit: int = 1) -> int | None:
        return round(float(text) * unit) if text else None

    allocated = whole(cells["peak_alloc_bytes"])
    assert allocated is not None
    gpu = cells["gpu"].partition("-")[0]
    return MeasuredRow(
        id=cells["id"],
        model=cells["model"],
        shape=shape_named(cells["model"]),
        plan=_plan_t4(cells) if gpu == "T4" else _plan_a100(cells),
        device=find_device("T4" if gpu == "T4" else "A100 SXM4 80GB"),
        resident=whole(cells["resident_alloc_bytes"]),
        allocated=allocated,
        reserved=whole(cells["peak_reserved_bytes"]),
        process=whole(cells["process_or_nvml_mib"], MIB),
        stepped=gpu != "T4",
    )


#: Session on the T4 -> the torch version whose libraries load weights as in that session. The
#: labels of two sessions differ from it. In the session of 2026-09-01 (labelled torch 2.10,
#: transformers 5.0) every run has, to the MiB, the blocks of weights that are quantized one by one.
#: In the session of 2026-09-15 (labelled torch 2.14, transformers 5.17, peft 0.20) the same model
#: takes 1,070 to 1,078 MiB after loading, different in each run. Only racing threads explain that;
#: the cache was not emptied afterwards.
_LIBRARIES: Final = {"2026-09-01": "2.13", "2026-09-15": "2.10", "2026-09-16": "2.10"}


def _plan_t4(cells: dict[str, str]) -> RunPlan:
    """A hand-written loop in float16 without autocast, adapters in float32, after
    prepare_model_for_kbit_training if the weights are quantized."""
    quantized = cells["method"] == "qlora"
    return RunPlan(
        method=cells["method"],
        batch=int(cells["micro_batch"]),
        sequence=int(cells["seq"]),
        dtype="fp16",
        autocast=False,
        quant="nf4" if quantized else None,
        kbit_prep="all" if quantized else "none",
        lora_rank=int(cells["lora_r"]),
        lora_targets=tuple(cells["lora_targets"].split()),
        checkpointing=True,
        attention="eager" if cells["attn"] == "eager" else "efficient",
        loop="manual",
        torch=_LIBRARIES[cells["id"].removeprefix("fitcheck-t4-")[:10]],
    )


def _plan_a100(cells: dict[str, str]) -> RunPlan:
    """A Trainer with packed sequences, adapters in float32; "foak" and "liger" fuse the loss."""
    quantized = cells["method"] == "qlora"
    config = cells["note"].partition(";")[0].partition("=")[2]
    fused = "foak" in config
    loss = "stock-4.48"
    if fused:
        loss = "fused" if "liger" in config else "in-place"
        if "tf4.48" in cells["stack"] and loss == "in-place":
            loss = "in-place-4.48"
    return RunPlan(
        method=cells["method"],
        batch=int(cells["micro_batch"]),
        sequence=int(cells["seq"]),
        dtype="bf16",
        autocast=quantized or cells["compute"].endswith("autocast"),
        quant="nf4-dq" if quantized else None,
        kbit_prep="norms" if "baseline" in config else "none",
        lora_rank=int(cells["lora_r"] or 16),
        lora_targets=tuple(
            name for name in cells["lora_targets"].split() if name != "c_attn"
        ) or ("all-linear",),
        lora_dropout=0.1 if cells["lora_r"] else 0.0,
        checkpointing=True,
        reentrant=True,
        kernels="fused" if fused else "torch",
        attention="flash",
        repeat_kv="tf4.45" in cells["stack"],
        loss=loss,
        torch="2.4",
    )  # fmt: skip
