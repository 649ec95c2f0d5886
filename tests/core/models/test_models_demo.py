"""The demo model has the properties that its card states."""

import json
import math
import re
from collections import Counter

import pytest

from qtui_core.models import open_model
from qtui_core.models.demo import DEMO_FOLDER, HELD_BACK_TEXT

LOSSES = json.loads((DEMO_FOLDER / "losses.json").read_text())
CARD = (DEMO_FOLDER / "README.md").read_text()


def test_shape_is_what_quantizers_want():
    with open_model("demo") as model:
        assert (model.id, model.origin) == ("demo", "demo")
        assert model.architecture == "LlamaForCausalLM"
        assert 3_000_000 <= model.parameters <= 6_000_000
        assert {info.dtype for info in model.tensors.values()} == {"BF16"}
        for info in model.tensors.values():
            assert all(size % 64 == 0 for size in info.shape), info.name
        heads = model.config["num_attention_heads"] // model.config["num_key_value_heads"]
        assert heads >= 2
        assert model.parameters == LOSSES["parameters"]
    assert (DEMO_FOLDER / "model.safetensors").stat().st_size <= 12_000_000


def test_the_card_states_the_measured_losses():
    assert f"{LOSSES['held_back_loss']:.4f}" in CARD
    assert f"{LOSSES['held_back_unigram_loss']:.4f}" in CARD
    for word in ("PSF", "Data", "Recipe", "loss"):
        assert re.search(word, CARD, re.IGNORECASE)


def test_the_unigram_loss_is_the_entropy_of_the_text():
    text = HELD_BACK_TEXT.read_bytes()
    shares = [n / len(text) for n in Counter(text).values()]
    entropy = sum(-p * math.log(p) for p in shares)
    assert LOSSES["held_back_unigram_loss"] == pytest.approx(entropy, abs=1e-4)


@pytest.mark.slow
def test_shipped_weights_reach_the_claimed_loss_on_held_back_text():
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(DEMO_FOLDER, dtype=torch.float32).eval()
    tokens = torch.tensor(list(HELD_BACK_TEXT.read_bytes()))
    windows = tokens[: len(tokens) // 256 * 256].view(-1, 256)
    losses = []
    with torch.no_grad():
        for window in windows[::2].split(32):  # all of them take half a minute
            # The loss is computed by the library, so that the test does not depend on qtui.
            losses += [model(window, labels=window).loss.item()] * len(window)
    loss = sum(losses) / len(losses)
    assert loss == pytest.approx(0.8942, abs=2e-3)
    assert loss == pytest.approx(LOSSES["held_back_loss"], abs=0.02)
    assert loss < 0.6 * LOSSES["held_back_unigram_loss"]
