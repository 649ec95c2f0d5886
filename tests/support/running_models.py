"""Small models with random weights, as folders that transformers can open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lazy_imports import LazyImport

torch = LazyImport("torch")
transformers = LazyImport("transformers")


#: The first has no end in practice: for each of n letters it tries n² ways. With the second, the
#: library of regular expressions gives up, and Rust panics.
ENDLESS, PANICKING = r"a*a*[^\sa]{2}", r"(a+)+\z"
WORDS = ["the", "cat", "sat", "on", "mat", "a", "dog", "ran", "far", "away", "and", "then"]


def write(model: Any, folder: Path, dtype: torch.dtype | None = None) -> Path:
    if dtype is not None:
        model = model.to(dtype)
    model.save_pretrained(folder)
    return folder


def llama(folder: Path, dtype: torch.dtype | None = None, **more: Any) -> Path:
    torch.manual_seed(1)
    settings = {
        "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    }  # fmt: skip
    config = transformers.LlamaConfig(**{**settings, **more})
    return write(transformers.LlamaForCausalLM(config), folder, dtype)


def gpt2(folder: Path) -> Path:
    torch.manual_seed(2)
    config = transformers.GPT2Config(vocab_size=256, n_embd=32, n_layer=2, n_head=2, n_positions=64)
    return write(transformers.GPT2LMHeadModel(config), folder)


def bert(folder: Path, *, masked: bool = False) -> Path:
    """A BERT with a tokenizer: a word is a token, and a text is between [CLS] and [SEP]."""
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=5 + len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=40,
    )  # fmt: skip
    kind = transformers.BertForMaskedLM if masked else transformers.BertModel
    write(kind(config), folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    inner = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(names)}, unk_token="[UNK]")
    )
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)


def split_tokenizer(folder: Path, expression: str) -> None:
    """Makes the tokenizer of a folder split text by a regular expression first."""
    path = folder / "tokenizer.json"
    read = json.loads(path.read_text())
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated"}
    parts = [{**split, "invert": False}, read["pre_tokenizer"]]
    read["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": parts}
    path.write_text(json.dumps(read))


def own_tokenizer_class(folder: Path) -> None:
    """Makes the tokenizer of a folder ask for a class that is the model's own code."""
    path = folder / "tokenizer_config.json"
    own = {
        "tokenizer_class": "OwnTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]},
    }
    path.write_text(json.dumps({**json.loads(path.read_text()), **own}))
    (folder / "tokenization_own.py").write_text("raise SystemExit('it was run')")


def text(words: int) -> str:
    return " ".join(WORDS[(i * i + i // 3) % len(WORDS)] for i in range(words))
