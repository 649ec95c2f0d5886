"""A process that records steps of the installed classes, and compares the tape with them.

Reads pickled pairs: the name of a function below, and its arguments. Answers each with what the
function returns, pickled. A trace changes torch while it runs, so it has a process of its own.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import peft  # its import creates a few tensors, which must not be in a trace
import torch
from cpu_kernels import on_cpu
from recording_difference import first_difference, peaks, standing_bytes
from tracing import stored_as

from qtui_core.errors import QtuiError
from qtui_core.memory.plan.run_plan import RunPlan, resolve_for
from qtui_core.memory.replay.record import Recording
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.step.run import record_step
from qtui_core.training.model.build import Built
from qtui_core.training.step import batch_of
from qtui_core.training.tracing import trace
from qtui_core.training.tracing.trace import record

assert peft


def recorded(
    config: dict[str, Any], plan: RunPlan, settings: dict[str, Any]
) -> Recording | QtuiError:
    """What is recorded of the installed classes, or why it is not."""
    try:
        return record(config, resolve_for(stored_as(config), plan), **settings)
    except QtuiError as error:
        return error


def compared(case: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `drift.Agreement`, for those of a `drift.Case`."""
    chosen = {k: tuple(v) if isinstance(v, list) else v for k, v in case["plan"].items()}
    plan = RunPlan(**chosen)
    device = case["device"]
    try:
        shape = shape_from_config(case["config"])
        plan = resolve_for(shape, plan)
        real = record(case["config"], plan, device, case["steps"], whole=True)
        with on_cpu() if device == "cpu" else nullcontext():
            taped = record_step(shape, plan, case["steps"])
    except QtuiError as error:
        return {"failed": str(error)}
    return {
        "difference": first_difference(taped, real),
        "standing": (standing_bytes(taped), standing_bytes(real)),
        "tape": peaks(taped),
        "real": peaks(real),
    }


def seen(config: dict[str, Any], plan: RunPlan) -> tuple[dict[str, int], dict[str, int]]:
    """The most bytes alive by phase, on the tape and in a step on a CPU, with images."""
    shape = shape_from_config(config)
    plan = resolve_for(shape, plan)
    with patch.object(trace, "batch_of", batch_with_images if plan.image_tokens else batch_of):
        real = record(config, plan, "cpu", 1, whole=True)
    with on_cpu():
        taped = record_step(shape, plan, 1)
    return peaks(taped), peaks(real)


def batch_with_images(built: Built, plan: RunPlan, device: str) -> dict[str, torch.Tensor]:
    """The batch of `batch_of`, with one image of `plan.image_tokens` tokens at the beginning of
    each sequence; Gemma 3 has images of one size, of which there are several if need be."""
    batch: dict[str, Any] = batch_of(built, plan, device)
    config, tokens, count = built.configuration, plan.image_tokens, plan.batch
    vision, ids = config.vision_config, batch["input_ids"]
    image = getattr(config, "image_token_id", None)
    image = config.image_token_index if image is None else image
    ids[ids == image] = 0
    ids[:, :tokens] = image
    kinds = torch.zeros_like(ids)
    kinds[:, :tokens] = 1
    batch["attention_mask"] = torch.ones_like(ids)
    side = vision.patch_size
    if config.model_type.startswith("qwen"):
        merge = vision.spatial_merge_size
        pixels = vision.in_channels * vision.temporal_patch_size * side**2
        grid = torch.tensor([[1, merge, tokens * merge]] * count, device=device)
        batch["pixel_values"] = torch.rand(count * tokens * merge**2, pixels, device=device)
        return batch | {"image_grid_thw": grid, "mm_token_type_ids": kinds}
    if config.model_type == "gemma3":
        each = count * tokens // config.mm_tokens_per_image
        shape = (each, 3, vision.image_size, vision.image_size)
        return batch | {"pixel_values": torch.rand(shape, device=device), "token_type_ids": kinds}
    if config.model_type == "gemma4":
        pool = vision.pooling_kernel_size
        x, y = torch.meshgrid(
            torch.arange(tokens * pool, device=device), torch.arange(pool, device=device),
            indexing="ij",
        )  # fmt: skip
        places = torch.stack([x.flatten(), y.flatten()], -1).expand(count, -1, -1).contiguous()
        shape = (count, tokens * pool**2, 3 * side**2)
        batch |= {"pixel_values": torch.rand(shape, device=device), "mm_token_type_ids": kinds}
        return batch | {"image_position_ids": places}
    merge = config.spatial_merge_size
    height, width = merge * side, tokens * merge * side
    sizes = torch.tensor([[height, width]] * count, device=device)
    pixels = torch.rand(count, 3, height, width, device=device)
    return batch | {"pixel_values": pixels, "image_sizes": sizes}


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print
    questions = {function.__name__: function for function in (recorded, compared, seen)}
    while True:
        # Each trace collects garbage when its steps begin, and would search all that the libraries
        # have made: a third of its time. What is there by now stays.
        gc.collect()
        gc.freeze()
        try:
            question, about = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(questions[question](*about), answers)
        answers.flush()


if __name__ == "__main__":
    main()
