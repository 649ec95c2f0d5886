"""Losses on the tape, compared with the published bytes per token, arithmetic, and torch itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from lazy_imports import LazyImport
from shorthands import record_peaks
from test_memory_tape_autograd import leaf, tape_levels

from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.tape.blocks.losses import fused_loss, tiled_loss
from qtui_core.memory.tape.tape import Tape, backward

torch = LazyImport("torch")
functional = LazyImport("torch.nn.functional")
checkpoint = LazyImport("torch.utils.checkpoint", "checkpoint")


WORDS, WIDTH, TOKENS = 50_000, 64, 256
SHAPE = shape_from_config(
    {
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": 128,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "vocab_size": WORDS,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
)


def peaks(loss: str, tokens: int = TOKENS, **changes: Any) -> dict[str, int]:
    plan = RunPlan(method="lora", loss=loss, checkpointing=True, sequence=tokens)
    return dict(record_peaks(SHAPE, resolve(replace(plan, **changes), SHAPE.dtype)))


@pytest.mark.parametrize(
    ("loss", "batch", "loop", "phase", "per_logit"),
    [
        ("stock", 1, "trainer", "loss", 2 + 4 + 4),  # as computed, in float32, log-softmax
        ("stock", 1, "trainer", "backward", 4 + 4 + 4),  # log-softmax and two gradients
        ("stock", 1, "manual", "backward", 2 + 4 + 4 + 4),  # the logits are held besides
        ("stock-4.48", 2, "trainer", "loss", 2 + 4 + 4 + 4),  # and a copy, shifted
        ("stock-4.48", 1, "trainer", "loss", 2 + 4 + 4),  # which is a view of one sequence
        ("in-place-4.48", 2, "trainer", "loss", 2 + 4 + 4),
        ("in-place-4.48", 1, "trainer", "loss", 2 + 4),
        ("in-place", 2, "trainer", "loss", 4 + 4),  # its forward() frees the logits as computed
        ("in-place", 1, "trainer", "loss", 2 + 4),
    ],
)
def test_bytes_of_a_logit(loss: str, batch: int, loop: str, phase: str, per_logit: int) -> None:
    more, less = (
        peaks(loss, tokens, loop=loop, batch=batch)[phase] for tokens in (2 * TOKENS, TOKENS)
    )
    assert (more - less) / (batch * TOKENS * WORDS) == pytest.approx(per_logit, rel=0.01)


def test_a_fused_loss_grows_by_no_vocabulary() -> None:
    """With four times the tokens it still avoids the 10 and 12 bytes per logit of the stock
    loss."""

    def grown(loss: str, phase: str) -> int:
        return peaks(loss, 4 * TOKENS)[phase] - peaks(loss, TOKENS)[phase]

    for phase, per_logit in (("loss", 10), ("backward", 12)):
        saved = grown("stock", phase) - grown("fused", phase)
        assert saved > 0.95 * per_logit * 3 * TOKENS * WORDS


#: (type of hidden states, of the head, whether the head trains, autocast, words) -> bytes at most
#: above what was there, of ChunkedLogProbFunction of TRL 1.16.0, forward and backward, with
#: masked_scatter and the sums of SFTTrainer.compute_loss around it, on a CPU with torch 2.13: 2
#: sequences of 300 tokens, width 128. Its kernels, which allocate nothing on a GPU, were replaced
#: by functions that do nothing; torch.profiler counted.
TRL_1_16 = {
    ("fp32", "fp32", True, False, 50_000): 104_605_966,
    ("fp32", "fp32", False, False, 50_000): 79_005_966,
    ("bf16", "bf16", True, False, 50_000): 78_215_438,
    ("bf16", "bf16", False, False, 50_000): 39_815_438,
    ("fp32", "fp32", False, True, 50_000): 52_768_526,
    ("fp32", "bf16", False, True, 50_000): 39_968_526,
    ("fp32", "fp32", True, False, 20_000): 89_245_966,
}


def test_tiles_take_what_those_of_trl_take() -> None:
    off = {}
    for case, measured in TRL_1_16.items():
        of_hidden, of_table, trained, autocast, words = case
        tape = Tape()
        given = leaf(tape, 600 * 128, of_hidden)
        table = leaf(tape, words * 128, of_table, trained)
        ids = tape.new(600, "int64", "labels")

        def taped(tape: Tape) -> object:
            tape.autocast = "bf16" if autocast else None  # noqa: B023
            loss = tiled_loss(given, table, ids, 2, 128)  # noqa: B023
            tape.autocast, tape.casts = None, {}
            backward(tape, loss)
            return loss

        if abs(max(tape_levels(taped, tape)) - measured) > 0.0003 * measured:
            off[case] = max(tape_levels(taped, tape)), measured
    assert not off


@pytest.mark.parametrize(("trained", "batch"), [(True, 1), (False, 1), (False, 2)])
def test_a_fused_loss_takes_a_chunk_of_logits_and_its_gradients(trained: bool, batch: int) -> None:
    """Tokens of a chunk: the power of two from tokens / ceil(vocabulary / width) on."""
    tokens, words, width = 4096, 32_000, 1024
    chunk = 128  # 4096 / 32
    tape = Tape()
    given = leaf(tape, tokens * width, "bf16")
    table = leaf(tape, words * width, "bf16", trained)
    ids = tape.new(tokens, "int64", "labels")
    before = max(tape_levels(lambda tape: None, tape), default=0)

    def taped(tape: Tape) -> object:
        loss = fused_loss(given, table, ids, batch, width)
        backward(tape, loss)
        return loss

    gradients = 2 * tokens * width + trained * 2 * words * width
    small = 8 * (tokens + batch) + 8 * tokens * (batch > 1) + 4 * tokens
    assert max(tape_levels(taped, tape)) - before == gradients + small + 2 * chunk * words
    assert given.grad is not None
    assert (table.grad is not None) == trained
