"""Worked cases of documents: our figures agree with what the reasons say about them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qtui_core.errors import UsageError
from qtui_core.memory.advice.cases import CASES, GB, case_of, figures_of
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.shape.model_shape import parameter_count

CONFIGS = Path(__file__).parent / "configs"
#: Case -> the published configuration of the same model.
PUBLISHED = {
    "gpt2-medium": "gpt2-medium",
    "gpt2-xl": "gpt2-xl",
    "adam-8b": "llama-3.1-8b",
    "qlora-70b": "llama-2-70b",
}


def figures(key: str) -> dict[str, float]:
    """Ours, in GB."""
    return {figure.what: figure.bytes / GB for figure in figures_of(case_of(key))}


@pytest.mark.parametrize("key", PUBLISHED)
def test_models_are_those_that_are_published(key: str) -> None:
    config = json.loads((CONFIGS / f"{PUBLISHED[key]}.json").read_text())
    ours, theirs = shape_from_config(case_of(key).config), shape_from_config(config)
    assert parameter_count(ours) == parameter_count(theirs)
    assert ours.layers == theirs.layers


def test_gpt_neox_has_its_parameters() -> None:
    """EleutherAI/gpt-neox-20b as transformers counts it."""
    shape = shape_from_config(case_of("20b").config)
    assert parameter_count(shape) == 20_554_567_680


def test_states_are_bytes_a_parameter() -> None:
    """Where the documents only multiply, our figures agree except for the number of parameters."""
    medium, parameters = figures("gpt2-medium"), 354_823_168 / GB
    assert medium["weights, FP32"] == pytest.approx(4 * parameters, rel=1e-3)
    assert medium["gradients, FP32"] == pytest.approx(4 * parameters, rel=1e-3)
    assert medium["Adam states"] == pytest.approx(8 * parameters, rel=1e-3)
    assert figures("gpt2-xl")["model states"] == pytest.approx(16 * 1.5576112, rel=1e-3)
    eight = figures("adam-8b")
    assert eight["FP32 Adam"] == pytest.approx(8 * 8.030261248, rel=1e-3)
    assert eight["BF16 Adam"] == pytest.approx(4 * 8.030261248, rel=1e-3)
    embedding = 128256 * 4096 / GB
    rest = 2 * (8.030261248 - embedding) * (1 + 4 / 256)
    assert eight["8-bit Adam"] == pytest.approx(rest + 8 * embedding, rel=1e-3)
    assert eight["4-bit Adam"] == pytest.approx((1 + 8 / 128) * 8.030261248, rel=2e-3)
    twenty = figures("20b")
    assert twenty["float32"] == pytest.approx(4 * 20.55456768, rel=1e-3)
    assert twenty["float16"] == pytest.approx(2 * 20.55456768, rel=1e-3)


def test_what_is_said_of_seventy_billion() -> None:
    found = figures("qlora-70b")
    assert 34.5 < found["weights, 4 bits"] < 37  # not 65
    assert found["base in 16 bits"] == pytest.approx(2 * 68.976648192, rel=1e-3)  # not 260
    assert found["full, mixed precision"] == pytest.approx(16 * 68.976648192, rel=1e-3)
    # 207M parameters of rank 16, 16 bytes each
    assert found["adapters, states"] == pytest.approx(0.2071 * 16, rel=2e-3)


def test_activations_are_more_than_is_stated() -> None:
    """The two documents count only a few tensors per layer, as the reasons say."""
    medium = figures("gpt2-medium")
    layer = 8 * 1024 * 1024 * 4 / GB
    logits = 8 * 1024 * 50257 * 4 / GB
    assert 4 / (24 * layer) == pytest.approx(5, abs=0.2)
    assert (medium["activations, FP32"] - 2 * logits) / (24 * layer) == pytest.approx(26, abs=1)
    assert 3 * logits == pytest.approx(4.9, abs=0.05)
    states = medium["weights, FP32"] + medium["Adam states"]
    without = medium["activations, FP32"] + states + 2 * logits
    assert medium["training, FP32"] == pytest.approx(without, rel=0.02)
    cache = 8 * 1024 * 2 * 24 * 1024 * 4 / GB
    assert cache == pytest.approx(1.6, abs=0.05)
    assert medium["inference, FP32"] > medium["weights, FP32"] + cache
    xl = figures("gpt2-xl")
    tensor = 32 * 1024 * 1600 * 2 / GB
    assert 12 * 48 * tensor == pytest.approx(60, rel=0.01)
    logits_of_xl = 32 * 1024 * 50257 * 4 / GB
    found = (xl["activations"] - 2 * logits_of_xl) / (48 * tensor)
    assert found == pytest.approx(42, abs=2)
    kept = 48 * 2 * tensor  # one FP32 input a layer
    assert kept < xl["activations, checkpointed"] < kept + 1.2 * logits_of_xl + 0.5


def test_every_case_says_why() -> None:
    for case in CASES:
        assert case.claims
        for claim in case.claims:
            assert claim.why.endswith(".")
            assert claim.stated_gb > 0


def test_an_unknown_case_is_refused() -> None:
    with pytest.raises(UsageError, match="gpt2-medium"):
        case_of("gpt5")
