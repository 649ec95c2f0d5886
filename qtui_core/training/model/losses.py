"""Losses that replace the loss of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from qtui_core.errors import UsageError
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.training.model.tiled import tiled_cross_entropy


def set_loss(model: Any, plan: RunPlan) -> None:
    """Sets the loss of a causal model to that of a plan; with "stock" the model keeps its own.

    Raises UsageError for any other loss if the model does not predict the next token.
    """
    if (
        plan.trains
        and plan.loss != "stock"
        and (model.config.is_encoder_decoder or not model.can_generate())
    ):
        raise UsageError(
            f"--loss {plan.loss} is of models that predict the next token, and "
            f"{type(model).__name__} does not; use --loss stock."
        )
    if plan.loss == "tiled":
        use_hidden_states(model, "tiled", tiled_cross_entropy)
    if plan.loss == "stock-4.48":
        model.loss_function = loss_of_4_48


def loss_of_4_48(
    logits: torch.Tensor, labels: torch.Tensor, vocab_size: int, **_: Any
) -> torch.Tensor:
    """The loss of transformers 4.48, from logits `[batch, sequence, vocabulary]`, which it casts to
    float32. It copies all but the last of each sequence and compares them with the labels one place
    later."""
    logits = logits.float()  # lives until this function returns, as in 4.48
    shifted = logits[..., :-1, :].contiguous()
    targets = labels[..., 1:].contiguous()
    return functional.cross_entropy(shifted.view(-1, vocab_size), targets.view(-1))


def use_hidden_states(model: Any, name: str, compute: Callable[..., Any]) -> None:
    """Makes a causal model compute its loss from hidden states, without the logits of all tokens,
    if it receives labels. `compute` is the loss, which `--loss name` selects.

    Raises UsageError for a model that is not causal, or whose head is not a matrix.
    """
    head = model.get_output_embeddings()
    config = model.config
    decoder = model.base_model
    if config.is_encoder_decoder or not model.can_generate() or decoder is model:
        raise UsageError(
            f"--loss {name} is for models that predict the next token, and "
            f"{type(model).__name__} does not; use --loss stock."
        )
    if not isinstance(head, nn.Linear):
        raise UsageError(
            f"--loss {name} multiplies by the matrix of the head, and that of "
            f"{type(model).__name__} is a {type(head).__name__}; use --loss stock."
        )
    scale, softcap = _scale(config), getattr(config, "final_logit_softcapping", None)

    plain = model.forward

    def forward(labels: torch.Tensor | None = None, **inputs: Any) -> Any:
        if labels is None:
            return plain(**inputs)
        hidden = decoder(**inputs).last_hidden_state
        return model.loss_function(hidden, head, labels, scale=scale, softcap=softcap)

    model.forward = forward
    model.loss_function = compute


def _scale(config: Any) -> float | None:
    """The factor of the logits: Cohere multiplies by one, Granite divides. None without one."""
    if (scale := getattr(config, "logit_scale", None)) is not None:
        return float(scale)
    divisor = getattr(config, "logits_scaling", None)
    return None if divisor is None else 1.0 / float(divisor)
