"""Worked cases: runs that documents calculate by hand, with the figures that they give.

A row is a model's config.json, a plan, and claims. Every `why` states something that our figures
show; a test checks it against them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from qtui_core.errors import UsageError
from qtui_core.memory.advice.claims import Claim, WorkedCase
from qtui_core.memory.plan.run_plan import RunPlan


def _gpt2(hidden: int, layers: int, heads: int) -> Mapping[str, Any]:
    return MappingProxyType(
        {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "activation_function": "gelu_new",
            "attn_pdrop": 0.1,
            "embd_pdrop": 0.1,
            "resid_pdrop": 0.1,
            "n_embd": hidden,
            "n_head": heads,
            "n_layer": layers,
            "n_positions": 1024,
            "vocab_size": 50257,
        }
    )


def _llama(
    hidden: int, intermediate: int, layers: int, heads: int, vocabulary: int, positions: int
) -> Mapping[str, Any]:
    return MappingProxyType(
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": 8,
            "max_position_embeddings": positions,
            "vocab_size": vocabulary,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }
    )


_NEOX_20B: Final = MappingProxyType(
    {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "hidden_act": "gelu_fast",
        "hidden_size": 6144,
        "intermediate_size": 24576,
        "max_position_embeddings": 2048,
        "num_attention_heads": 64,
        "num_hidden_layers": 44,
        "rotary_pct": 0.25,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "use_parallel_residual": True,
        "vocab_size": 50432,
    }
)

#: fp32 weights with 16-bit products: torch's mixed-precision training.
_MIXED: Final = {"dtype": "fp32", "autocast": True, "autocast_dtype": "fp16"}

CASES: Final = (
    WorkedCase(
        "gpt2-medium",
        "GPT-2 medium, batch 8 of 1,024",
        "a table of GPT-2 medium (345M), FP32, mixed FP16 and INT8",
        _gpt2(1024, 24, 16),
        RunPlan(method="full", batch=8, sequence=1024, dtype="fp32"),
        (
            Claim("weights, FP32", 1.4, "stored", "The same: 354.8M parameters."),
            Claim("gradients, FP32", 1.4, "gradients", "The same, one a parameter."),
            Claim("Adam states", 2.8, "optimizer", "The same, two a parameter."),
            Claim(
                "activations, FP32", 4, "kept",
                "The table counts five tensors of [batch, seq, hidden] a layer; autograd keeps "
                "some 26 (GELU alone eight), and the logits of 50,257 words.",
            ),
            Claim(
                "training, FP32", 9.6, "peak",
                "The activations again. The peak is where the backward pass begins: three tensors "
                "of logits, 4.9 GB, and no gradients yet.",
            ),
            Claim(
                "training, mixed FP16", 6.2, "peak",
                "Autocast halves products only: norms, GELU and loss stay in FP32, and so do the "
                "weights, whose 16-bit copies are saved besides.",
                _MIXED,
            ),
            Claim(
                "inference, FP32", 1.4, "peak",
                "Weights alone; a prefill of 8 x 1,024 needs its cache of 1.6 GB and a layer's "
                "temporaries too.",
                {"method": "inference"},
            ),
        ),
    ),
    WorkedCase(
        "gpt2-xl",
        "GPT-2 1.5B, batch 32 of 1,024",
        "ZeRO (arXiv 1910.02054), section 3",
        _gpt2(1600, 48, 25),
        RunPlan(
            method="full", batch=32, sequence=1024, dtype="fp32", autocast=True,
            autocast_dtype="fp16",
        ),
        (
            Claim(
                "weights, 16 bits", 3, "stored", "The same: 1.56B parameters of 2 bytes.",
                {"dtype": "fp16", "autocast": False},
            ),
            Claim(
                "model states", 24, "states",
                "The same 16 bytes a parameter: torch has 4 + 4 + 8 where the paper has 2 + 2 + "
                "12, and its 16-bit copies live only in the step.",
            ),
            Claim(
                "activations", 60, "kept",
                "The paper counts 12 tensors of [batch, seq, hidden] a layer in 16 bits; GPT-2 of "
                "transformers keeps as much as 42 of them (GELU alone eight), and the logits.",
            ),
            Claim(
                "activations, checkpointed", 8, "kept",
                "One FP32 input a layer is kept, and the logits; the paper counts no logits.",
                {"checkpointing": True},
            ),
        ),
    ),
    WorkedCase(
        "adam-8b",
        "8B: Adam in four precisions",
        "slides on low-bit optimizers (torchao)",
        _llama(4096, 14336, 32, 32, 128256, 131072),
        RunPlan(method="full", dtype="bf16", batch=1, sequence=2048, checkpointing=True),
        (
            Claim(
                "FP32 Adam", 64, "optimizer", "The same: 8.03B parameters, 2 x 4 bytes.",
                {"dtype": "fp32"},
            ),
            Claim("BF16 Adam", 32, "optimizer", "The same, 2 x 2 bytes."),
            Claim(
                "8-bit Adam", 16, "optimizer",
                "2 x 1 byte and scales; but the Trainer asks for 32-bit states of the embedding, "
                "525M parameters of 8 bytes.",
                {"optimizer": "adamw8bit"},
            ),
            Claim(
                "4-bit Adam", 8, "optimizer",
                "2 x half a byte, and an FP32 scale for each block of 128.",
                {"optimizer": "adamw4bit"},
            ),
        ),
    ),
    WorkedCase(
        "20b",
        "20B: weights in four precisions",
        "a lecture on PEFT: 4, 2, 1 and half a byte a parameter",
        _NEOX_20B,
        RunPlan(method="inference", dtype="fp16", batch=1, sequence=2048),
        (
            Claim(
                "float32", 80, "stored", "GPT-NeoX has 20.55B parameters, not 20.",
                {"dtype": "fp32"},
            ),
            Claim("float16", 40, "stored", "The same parameters, 2 bytes."),
            Claim(
                "int8", 20, "stored",
                "Embeddings and head are not quantized: 0.62B parameters stay in 16 bits.",
                {"quant": "int8"},
            ),
            Claim(
                "4 bits", 10, "stored",
                "Embeddings and head stay in 16 bits, and each block of 64 has its absmax.",
                {"quant": "nf4"},
            ),
        ),
    ),
    WorkedCase(
        "qlora-70b",
        "Llama 70B with QLoRA",
        "an article on low precision: 1,040 GB become 68",
        _llama(8192, 28672, 80, 64, 32000, 4096),
        RunPlan(method="qlora", dtype="bf16", batch=1, sequence=2048),
        (
            Claim(
                "weights, 4 bits", 65, "stored",
                "4 bits of 69B parameters are 35 GB. 65 GB are 65 billion whole bytes.",
                {"kbit_prep": "none"},
            ),
            Claim(
                "adapters, states", 2.6, "adapted",
                "16 bytes a parameter, as the article has it; rank 16 on all linear layers are "
                "207M parameters, not 175M.",
            ),
            Claim(
                "base in 16 bits", 260, "stored",
                "2 bytes of 69B parameters are 138 GB; 260 GB are 4 bytes of 65 billion.",
                {"method": "lora"},
            ),
            Claim(
                "full, mixed precision", 1040, "states",
                "The same 16 bytes a parameter, of 69 and not of 65 billion.",
                {"method": "full", "dtype": "fp32", "autocast": True},
            ),
            Claim(
                "all of QLoRA", 68, "peak",
                "The weights are half of it, and activations and logits come on top.",
            ),
        ),
    ),
)  # fmt: skip


def case_of(key: str) -> WorkedCase:
    """The case with a key. Raises UsageError for an unknown key, with the known ones."""
    for case in CASES:
        if case.key == key:
            return case
    known = ", ".join(case.key for case in CASES)
    raise UsageError(f"There is no worked case {key!r}; there are {known}.")
