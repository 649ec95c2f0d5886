"""The longest sequence of models with a table of positions, compared with the real classes."""

from __future__ import annotations

import pytest
from lazy_imports import LazyImport

from qtui_core.errors import UsageError
from qtui_core.memory import RunPlan
from qtui_core.memory.plan.run_plan import check_against, resolve
from qtui_core.memory.shape.from_config import shape_from_config

torch = LazyImport("torch")
transformers = LazyImport("transformers")


#: model_type -> its config.json with 20 positions, and its class.
SMALL = {
    "bert": {"max_position_embeddings": 20, "architectures": ["BertForMaskedLM"]},
    "roberta": {"max_position_embeddings": 20, "pad_token_id": 1},
    "gpt2": {"n_positions": 20, "n_embd": 16, "n_layer": 1, "n_head": 2},
    "opt": {
        "max_position_embeddings": 20, "ffn_dim": 32, "word_embed_proj_dim": 16, "pad_token_id": 1,
    },
}  # fmt: skip
CLASSES = {
    "bert": "BertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
    "gpt2": "GPT2LMHeadModel",
    "opt": "OPTForCausalLM",
}


def runs(model: torch.nn.Module, length: int) -> bool:
    """Whether a sequence of so many tokens runs with the positions of the model."""
    try:
        model(torch.full((1, length), 7))
    except (IndexError, RuntimeError):
        return False
    return True


@pytest.mark.parametrize("family", sorted(SMALL))
def test_the_longest_sequence_is_the_one_that_the_class_takes(family):
    sizes = {
        "model_type": family, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 32, "vocab_size": 50,
    } | SMALL[family]  # fmt: skip
    kind = getattr(transformers, CLASSES[family])
    model = kind(kind.config_class(**sizes)).eval()
    shape = shape_from_config(sizes)
    longest = shape.max_positions
    assert runs(model, longest)
    assert not runs(model, longest + 1)
    check_against(shape, resolve(RunPlan(method="full", sequence=longest), None))
    with pytest.raises(UsageError, match=f"use --seq {longest} or less"):
        check_against(shape, resolve(RunPlan(method="full", sequence=longest + 1), None))
