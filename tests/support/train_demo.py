"""Trains the demo model and writes everything the package ships of it but the card.

    python tests/support/train_demo.py OUTPUT_FOLDER [--steps N]

About half an hour on two idle CPU cores. Seeded: the batches and the initial weights are the
same on every run; the sums of a matrix product are not ordered alike on every CPU, so weights
agree between machines only to rounding.
"""

import argparse
import json
import math
from collections import Counter
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from qtui_core.models.demo import corpus_files

SEED = 20261121
BATCH, WINDOW = 16, 256
PEAK_RATE, FLOOR_RATE, WARMUP = 2e-3, 1e-4, 100
WEIGHT_DECAY = 0.1
HELD_BACK_BYTES = 128 * 1024

#: Every Linear dimension is a multiple of 64, so that block and group sizes in use divide
#: it, and two query heads share a KV head, so that grouped attention is there to be seen.
CONFIG = LlamaConfig(
    vocab_size=256, hidden_size=256, intermediate_size=704, num_hidden_layers=6,
    num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=2048,
    rope_theta=10000.0, rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=0,
    eos_token_id=0, dtype="bfloat16", architectures=["LlamaForCausalLM"],
)  # fmt: skip


def read_corpus() -> tuple[bytes, bytes]:
    """Training text and held-back text, each the concatenation of whole files separated by
    a zero byte. The held-back text is cut to HELD_BACK_BYTES at a line end."""
    parts: dict[bool, list[bytes]] = {False: [], True: []}
    for path, held in corpus_files():
        parts[held].append(path.read_bytes())
    excerpt = b"\0".join(parts[True])[:HELD_BACK_BYTES]
    return b"\0".join(parts[False]), excerpt[: excerpt.rfind(b"\n") + 1]


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine from PEAK_RATE to FLOOR_RATE."""
    if step < WARMUP:
        return PEAK_RATE * (step + 1) / WARMUP
    progress = (step - WARMUP) / max(1, steps - WARMUP)
    return FLOOR_RATE + (PEAK_RATE - FLOOR_RATE) * (1 + math.cos(math.pi * progress)) / 2


def train(text: bytes, steps: int) -> LlamaForCausalLM:
    """A model trained for `steps` batches of random windows of `text`, a token a byte.

    Weights and optimizer are float32; products run in bfloat16 under autocast.
    """
    torch.manual_seed(SEED)
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    model = LlamaForCausalLM(CONFIG).float().train()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": plain, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
    )
    picks = torch.Generator().manual_seed(SEED)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        starts = torch.randint(len(tokens) - WINDOW, (BATCH,), generator=picks)
        batch = torch.stack([tokens[s : s + WINDOW] for s in starts]).long()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)
    return model


@torch.no_grad()
def mean_loss(folder: Path, text: bytes, window: int = 256) -> float:
    """Mean cross entropy in nats per byte of the model in `folder`, its weights widened to float32,
    over non-overlapping windows of `text`. The first byte of each is given and not predicted."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    windows = tokens[: len(tokens) // window * window].view(-1, window)
    losses = [model(part[None], labels=part[None]).loss.item() for part in windows]
    return sum(losses) / len(losses)


def write(model: LlamaForCausalLM, held_back: bytes, folder: Path, steps: int) -> None:
    """config.json, model.safetensors in BF16, the held-back text and the measured losses."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(CONFIG.to_json_string(use_diff=False) + "\n")
    (folder / "held_back.txt").write_bytes(held_back)
    shares = [n / len(held_back) for n in Counter(held_back).values()]
    measured = {
        "steps": steps,
        "tokens": steps * BATCH * WINDOW,
        "parameters": sum(t.numel() for t in weights.values()),
        "held_back_loss": round(mean_loss(folder, held_back), 4),
        # Of the best model that knows only how often each byte occurs.
        "held_back_unigram_loss": round(-sum(p * math.log(p) for p in shares), 4),
    }
    (folder / "losses.json").write_text(json.dumps(measured, indent=2) + "\n")
    print(json.dumps(measured))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=2500)
    options = parser.parse_args()
    training, held_back = read_corpus()
    write(train(training, options.steps), held_back, options.folder, options.steps)
