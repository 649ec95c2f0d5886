"""The loss of the demo model on a text: how the number in the card was measured."""

import math
from collections import Counter
from pathlib import Path

import torch
from transformers import LlamaForCausalLM


def unigram_loss(text: bytes) -> float:
    """Nats per byte of the best model that knows only how often each byte occurs in `text`."""
    counts = Counter(text)
    total = len(text)
    return -sum(n / total * math.log(n / total) for n in counts.values())


@torch.no_grad()
def mean_loss(model: LlamaForCausalLM, text: bytes, window: int = 256, batch: int = 32) -> float:
    """Mean cross entropy in nats per byte over non-overlapping windows of `text`.

    A token is a byte. The first byte of a window is given and not predicted; a last
    window shorter than `window` is left out.
    """
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    windows = tokens[: len(tokens) // window * window].view(-1, window)
    total = 0.0
    for part in windows.split(batch):
        logits = model(part[:, :-1]).logits.float()
        total += torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum"
        ).item()
    return total / (windows.shape[0] * (window - 1))


def load(folder: Path) -> LlamaForCausalLM:
    """The model in `folder`, its BF16 weights widened to float32, in evaluation mode."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
