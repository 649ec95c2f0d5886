"""The inputs of a step with images, as the processors of each family make them."""

from __future__ import annotations

from typing import Any

import torch

from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.training.model.build import Built
from qtui_core.training.step import batch_of


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
