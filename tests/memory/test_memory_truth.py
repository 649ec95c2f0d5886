"""Truth on a CPU: live steps of small random models, every storage tracked by a dispatch mode,
against the estimate of the same plan.

What kernels of a CPU do otherwise than those of a GPU is told to the tape by `cpu_kernels`, where
it is listed. Runs are without autocast, for peft asks whether that of CUDA is on, and the scores
of attention without dropout, which a CPU composes and a GPU does not.
"""

from __future__ import annotations

from itertools import product

import pytest
from drift import Agreement, Case, compare
from small_models import CONFIGS

pytestmark = pytest.mark.slow

MODELS = {
    "llama": {},
    "qwen2": {},
    "gpt2": {"attn_pdrop": 0.0},
    "bert": {"attention_probs_dropout_prob": 0.0},
    "mixtral": {},
    "qwen3_moe": {},
}
METHODS = ("full", "lora", "qlora")
LOSSES = ("stock-4.48", "tiled")
#: Bytes that a phase of a live step may hold besides: a CPU has no kernel that reduces a tile of
#: logits, and takes 80 kB for each number of this vocabulary to reduce a row.
BESIDES = {"tiled": 3 * 80_000}
STEPS = {
    f"{family}: {method}{', checkpoints' if checkpointing else ''}": Case(
        f"{family}: {method}{', checkpoints' if checkpointing else ''}",
        {"model_type": family, **CONFIGS[family], **MODELS[family], "torch_dtype": "bfloat16"},
        {
            "method": method,
            "checkpointing": checkpointing,
            "autocast": False,
            "batch": 2,
            "sequence": 96,
            "lora_rank": 8,
        },
        device="cpu",
    )
    for family, method, checkpointing in product(MODELS, METHODS, (False, True))
}
STEPS |= {
    f"{family}: {loss}": Case(
        f"{family}: {loss}",
        {
            "model_type": family,
            **CONFIGS[family],
            **MODELS.get(family, {}),
            "vocab_size": 20_000,
            "torch_dtype": "bfloat16",
        },
        {
            "method": "lora" if family == "opt" else "full",
            "loss": loss,
            "autocast": False,
            "batch": 1,
            "sequence": 96,
            "lora_rank": 8,
        },
        device="cpu",
    )
    for family, loss in product(("llama", "gpt2", "opt"), LOSSES)
}
STEPS |= {
    f"{family}: experts by name": Case(
        f"{family}: experts by name",
        {"model_type": family, **CONFIGS[family], "torch_dtype": "bfloat16"},
        {
            "method": "lora",
            "autocast": False,
            "batch": 1,
            "sequence": 96,
            "lora_rank": 8,
            "lora_targets": ["q_proj", "experts.gate_up_proj", "experts.down_proj"],
        },
        device="cpu",
    )
    for family in ("mixtral", "qwen3_moe")
}


@pytest.fixture(scope="module")
def agreements(request: pytest.FixtureRequest) -> dict[str, Agreement]:
    wanted = {
        item.callspec.params["name"]  # type: ignore[attr-defined]
        for item in request.session.items
        if item.path == request.path
    }
    return {case.name: found for case, found in compare(STEPS[name] for name in sorted(wanted))}


@pytest.mark.parametrize("name", STEPS)
def test_a_live_step_holds_what_the_estimate_says(
    agreements: dict[str, Agreement], name: str
) -> None:
    """0.1 % at the peak, 1 % in every phase of both steps, and no difference in what stays; a loss
    by tiles may hold some bytes besides."""
    found = agreements[name]
    assert not found.failed
    assert found.standing[0] == found.standing[1]
    if besides := BESIDES.get(name.rpartition(" ")[2]):
        assert found.tape is not None
        assert found.real is not None
        assert all(0 <= held - found.tape[p] <= besides for p, held in found.real.items())
        return
    assert abs(found.error) <= 0.1
    assert abs(found.worst_phase) <= 1.0, (found.tape, found.real)
