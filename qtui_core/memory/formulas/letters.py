"""The letters of formulas: their meanings, and the keys of a config.json that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from qtui_core.memory.formulas.size import letter

#: Letter -> its meaning, in the order of a report.
MEANINGS: Final = {
    "L": "layers",
    "B": "batch, sequences of a micro batch",
    "S": "sequence, tokens of each",
    "g": "tokens that are generated",
    "h": "hidden size",
    "V": "vocabulary",
    "P": "positions that are learned",
    "H": "heads",
    "G": "heads of keys and values",
    "D": "elements of a head",
    "R": "rotated elements of a head",
    "W": "tokens of a window",
    "I": "MLP width",
    "F": "width of dense MLPs between experts",
    "E": "experts",
    "k": "experts of a token",
    "M": "width of an expert",
    "m": "width of the shared expert",
    "q": "rank of queries",
    "c": "rank of keys and values",
    "n": "elements of a head without rotation",
    "e": "rotated elements of a head",
    "v": "elements of a head of values",
    "w": "width of the embedding",
    "T": "types of tokens",
    "b": "buckets of distances",
    "r": "rank of adapters",
}

#: Key of config.json -> its letter.
_KEYS: Final = {
    "hidden_size": "h",
    "n_embd": "h",
    "n_embed": "h",
    "d_model": "h",
    "intermediate_size": "I",
    "ffn_dim": "I",
    "n_inner": "I",
    "d_ff": "I",
    "ffn_hidden_size": "I",
    "intermediate_size_mlp": "F",
    "vocab_size": "V",
    "num_attention_heads": "H",
    "n_head": "H",
    "num_heads": "H",
    "num_key_value_heads": "G",
    "num_kv_heads": "G",
    "head_dim": "D",
    "d_kv": "D",
    "max_position_embeddings": "P",
    "n_positions": "P",
    "sliding_window": "W",
    "attention_chunk_size": "W",
    "num_local_experts": "E",
    "num_experts": "E",
    "n_routed_experts": "E",
    "num_experts_per_tok": "k",
    "moe_intermediate_size": "M",
    "shared_expert_intermediate_size": "m",
    "q_lora_rank": "q",
    "kv_lora_rank": "c",
    "qk_nope_head_dim": "n",
    "qk_rope_head_dim": "e",
    "v_head_dim": "v",
    "word_embed_proj_dim": "w",
    "type_vocab_size": "T",
    "relative_attention_num_buckets": "b",
}


def letters_of(config: Mapping[str, object]) -> dict[str, int]:
    """The letters that have a value in a config.json. Of several keys for a letter, the first one
    counts."""
    found: dict[str, int] = {}
    for key, name in _KEYS.items():
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            found.setdefault(name, letter(name, value))
    return found


def named(keys: str | tuple[str, ...], value: int) -> int:
    """The value of a key of config.json as a letter; a plain number if the key has no letter. Of
    several keys for the same thing, the first has the letter."""
    name = _KEYS.get(keys if isinstance(keys, str) else keys[0])
    return value if name is None else letter(name, value)
