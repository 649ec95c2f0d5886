"""The data of a run: a text as token ids, one batch after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import torch

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError, UsageError
from qtui_core.loading.model import folder_of
from qtui_core.loading.text import Text, read_text
from qtui_core.loading.tokens import Ids, Tokenizer, cut
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.models.source import ModelSource
from qtui_core.quantities import plural

BUILT_IN: Final = Path(__file__).with_name("builtin_text.txt")
#: The fewest tokens in which there is a next token to learn.
_LEAST: Final = 2


@dataclass(frozen=True, eq=False)
class Tokens:
    """A text as token ids, int64 `[tokens]`; how it was tokenized, in words such as "a byte a
    token"; and what gives the text of a token."""

    ids: Ids
    words: str
    decode: Callable[[int], str]


def text_of(path: str | None) -> Text:
    """The text of a file, or the built-in one, which is short enough to be learned in a few steps.

    Raises UsageError for a file that cannot be read or is not text.
    """
    if path is not None:
        return read_text(path, "training")
    return Text(BUILT_IN.read_text(encoding="utf-8"), "built-in text")


def encode(text: str, source: ModelSource, model: Any, least: int = _LEAST) -> Tokens:
    """The token ids of a text from the tokenizer of a model. A model with random weights and
    without a tokenizer reads bytes, from which it learns just as well.

    Raises ModelError if a model with weights has no tokenizer, UsageError if the text gives fewer
    than `least` tokens: two for a text to learn from, one for a prompt.
    """
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    try:
        folder = Path(source.location).parent if source.is_configuration else folder_of(source)
        tokenizer = Tokenizer(SimpleNamespace(folder=folder, vocabulary=vocabulary))
        tokens = Tokens(tokenizer.encode(text), tokenizer.words, tokenizer.decode)
    except ModelError:
        if not source.is_configuration:
            raise
        raw = np.frombuffer(text.encode("utf-8", "replace"), np.uint8).astype(np.int64)
        tokens = Tokens(raw % vocabulary, "a byte a token", chr)
    if tokens.ids.size < least:
        raise UsageError(
            f"The text has {plural(tokens.ids.size, 'token')}, of {least} or more that are needed; "
            f"take a longer one."
        )
    return tokens


def fill(batch: Mapping[str, torch.Tensor], ids: Ids, plan: RunPlan) -> Iterator[None]:
    """Writes the next sequences of a text into `input_ids` `[batch, sequence]` of a batch at each
    iteration, and starts over at the end of the text. Allocates nothing on the device of the
    batch."""
    into, places, start = batch["input_ids"], np.arange(plan.tokens), 0
    while True:
        rows = cut(ids.take(start + places, mode="wrap"), plan.sequence)
        if into.device.type == "cpu":
            into.numpy()[:] = rows
        else:
            into.copy_(torch.from_numpy(rows))
        start = (start + plan.tokens) % ids.size
        yield
