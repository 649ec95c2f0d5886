"""What a step holds in memory on a CPU but not on a GPU, because only one of them has a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from qtui_core.memory.plan.run_plan import RunPlan

#: The names of attention dropout in the configurations of transformers.
_DROPOUTS: Final = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")


def held_on_cpu(model: Any, plan: RunPlan) -> Iterator[str]:
    """Sentences on what a step holds on a CPU beyond its estimate, which is made for a GPU. `model`
    is a class of transformers without adapters."""
    if not plan.trains:
        return
    config = model.config
    relative = hasattr(config, "relative_attention_num_buckets")
    if plan.attention != "eager":
        dropped = any(getattr(config, name, None) for name in _DROPOUTS)
        if dropped or relative:
            why = "a bias that trains" if relative else "dropout"
            yield (
                f"On a CPU, attention with {why} is composed of several operations, which keep "
                f"the matrix of scores; the GPU kernels that the estimate assumes do not."
            )
    if plan.quant == "int8":
        yield (
            "On a CPU bitsandbytes trains over LLM.int8 with another product, which dequantizes "
            "the weights first: its activations and temporaries differ from the estimate's."
        )
    if plan.autocast and (config.is_encoder_decoder or not model.can_generate()):
        yield (
            "Autocast hands the cross entropy float32 logits on a CPU; on a GPU they stay in 16 "
            "bits, as estimated."
        )
