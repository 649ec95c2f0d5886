"""Losses other than the model's own, put in its place."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from qtui_core.memory.plan import RunPlan, chunk_of
from qtui_core.training.chunked import use_chunks


def set_loss(model: Any, plan: RunPlan) -> None:
    """Gives a causal model the loss of a plan; with "stock" it keeps its own.

    Raises UsageError for a loss in chunks of a model that predicts no next token.
    """
    chunk = chunk_of(plan.loss)
    if chunk is not None:
        use_chunks(model, chunk)
    if plan.loss == "stock-4.48":
        model.loss_function = loss_of_4_48


def loss_of_4_48(
    logits: torch.Tensor, labels: torch.Tensor, vocab_size: int, **_: Any
) -> torch.Tensor:
    """What transformers 4.48 did: `[batch, sequence, vocabulary]` logits in float32, of which all
    but the last of each sequence are copied, to be held against the labels one place on."""
    logits = logits.float()  # alive until this returns, as it was there
    shifted = logits[..., :-1, :].contiguous()
    targets = labels[..., 1:].contiguous()
    return functional.cross_entropy(shifted.view(-1, vocab_size), targets.view(-1))
