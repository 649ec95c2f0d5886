"""Turns text into windows of token ids, and splits them into calibration and held-out text.

transformers is imported only when a tokenizer is read.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError, UsageError
from qtui_core.models.files.local import check_tokenizer_links
from qtui_core.models.quoting import printable, quoted
from qtui_core.quantities import plural
from qtui_core.threads import in_daemon

Ids = npt.NDArray[np.int64]

#: The most and the fewest tokens of each half of a text, and the operations that choose a number
#: between: two per parameter and token; 10^12 take seconds on a CPU.
TOKEN_BUDGET = 2048
LEAST_BUDGET = 256
MAX_OPERATIONS = 10**12
#: Tokens of a window: long enough for attention to matter.
WINDOW = 256
#: Fewer tokens than this give no useful range.
LEAST_TOKENS = 16
#: A model with this vocabulary and without a tokenizer reads bytes.
BYTES = 256
#: What a tokenizer may take: seconds for any text, and on top a second for so many characters.
#: Tokenizers take a million characters a second and more, and a text has at most four million.
_SECONDS: Final = 20.0
_CHARACTERS_A_SECOND: Final = 50_000
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model",
    "sentencepiece.bpe.model",
)  # fmt: skip


class Tokenized(Protocol):
    """What a tokenizer needs of a loaded model."""

    @property
    def folder(self) -> Path: ...

    @property
    def vocabulary(self) -> int: ...


@dataclass(frozen=True, eq=False)
class Windows:
    """Token ids as a model takes them, each `[length]`, with special tokens."""

    ids: tuple[Ids, ...]

    @property
    def tokens(self) -> int:
        return sum(part.size for part in self.ids)


class Tokenizer:
    """Turns text into ids: with the model's own tokenizer, or as bytes."""

    def __init__(self, loaded: Tokenized) -> None:
        self._prefix: list[int] = []
        self._suffix: list[int] = []
        self._vocabulary = loaded.vocabulary
        self._own = None
        self.words = "a byte a token"
        if any((loaded.folder / name).is_file() for name in _TOKENIZER_FILES):
            self._own = _own_tokenizer(loaded.folder)
            self.words = "the model's own tokenizer"
            self._find_special()
        elif self._vocabulary != BYTES:
            raise ModelError(
                f"There is no tokenizer in {quoted(loaded.folder)} ({_TOKENIZER_FILES[0]} or its "
                f"like), so text cannot be turned into the tokens of this model."
            )

    def encode(self, text: str) -> Ids:
        """Ids without special tokens, int64 `[tokens]`.

        Raises:
            ModelError: the tokenizer fails, or gives ids that are not in the model's embedding.
        """
        if self._own is None:
            return np.frombuffer(text.encode("utf-8", "replace"), np.uint8).astype(np.int64)
        ids = np.asarray(self._ids(text, special=False), np.int64)
        if ids.size and int(ids.max()) >= self._vocabulary:
            raise ModelError(
                f"The tokenizer gives the id {int(ids.max()):,}, and the model has embeddings "
                f"for {self._vocabulary:,} tokens: they do not belong together."
            )
        return ids

    def decode(self, number: int) -> str:
        """The text of one token; for a byte that is no character by itself, the replacement
        character."""
        if self._own is None:
            return bytes([number]).decode("utf-8", "replace") if number < BYTES else f"#{number}"
        own = self._own
        return str(_bounded(lambda: own.decode([number]), "The tokenizer of the model failed"))

    @property
    def special(self) -> int:
        """The number of special tokens in a window."""
        return len(self._prefix) + len(self._suffix)

    @property
    def prefix(self) -> Ids:
        """The special tokens before a text, int64 `[tokens]`: often one, for its beginning."""
        return np.array(self._prefix, np.int64)

    def wrap(self, ids: Ids) -> Ids:
        """The ids with the special tokens that the model expects around text."""
        return np.array([*self._prefix, *ids.tolist(), *self._suffix], np.int64)

    def _ids(self, text: str, *, special: bool) -> list[int]:
        own = self._own
        assert own is not None
        return _bounded(
            lambda: list(own(text, add_special_tokens=special, verbose=False)["input_ids"]),
            "The tokenizer of the model failed",
            len(text),
        )

    def _find_special(self) -> None:
        plain, wrapped = self._ids("a", special=False), self._ids("a", special=True)
        for start in range(len(wrapped) - len(plain) + 1):
            if wrapped[start : start + len(plain)] == plain:
                self._prefix, self._suffix = wrapped[:start], wrapped[start + len(plain) :]
                return


def token_budget(parameters: int) -> int:
    """How many tokens of a text a model of this size reads in seconds."""
    affordable = MAX_OPERATIONS // (2 * max(1, parameters))
    return max(LEAST_BUDGET, min(TOKEN_BUDGET, affordable))


def split_windows(
    ids: Ids, tokenizer: Tokenizer, limit: int | None, budget: int = TOKEN_BUDGET
) -> tuple[Windows, Windows | None]:
    """Windows of the first half of a text, for calibration, and of the second half, held out. Of a
    half longer than `budget`, evenly spaced windows are taken. A text too short to be split is used
    for calibration as a whole, and nothing is held out.

    Args:
        ids: of the text, `[tokens]`.
        limit: the most tokens that the model takes at once; None if it does not say.

    Raises:
        UsageError: there are fewer than LEAST_TOKENS tokens.
    """
    if ids.size < LEAST_TOKENS:
        raise UsageError(
            f"The text has {plural(ids.size, 'token')}; calibration needs at least "
            f"{LEAST_TOKENS}, and a few thousand make good ranges."
        )
    length = max(1, min(WINDOW, limit or WINDOW) - tokenizer.special)
    parts = [ids] if ids.size < 2 * LEAST_TOKENS else np.split(ids, [ids.size // 2])
    first, *rest = (_windows(part, tokenizer, length, budget) for part in parts)
    return first, rest[0] if rest else None


def cut(ids: Ids, length: int, most: int | None = None) -> Ids:
    """The whole windows of a text, one after the other: int64 `[windows, length]`. Of more than
    `most`, those that are spread evenly over it."""
    there = ids.size // length
    windows = ids[: there * length].reshape(there, length)
    if most is None or there <= most:
        return windows
    return windows[np.linspace(0, there - 1, most).round().astype(int)]


def _windows(ids: Ids, tokenizer: Tokenizer, length: int, budget: int) -> Windows:
    most = max(1, budget // (length + tokenizer.special))
    parts = [*cut(ids, length, most)]
    if len(parts) < most and ids.size % length:
        parts.append(ids[-(ids.size % length) :])
    return Windows(tuple(map(tokenizer.wrap, parts)))


def positions_of(model: Any) -> int | None:
    """The most tokens that a model takes at once, from its configuration."""
    config = model.config
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit <= 0:
        return None
    if "roberta" in str(getattr(config, "model_type", "")):
        # In RoBERTa and similar models the first position follows the padding index.
        limit -= (getattr(config, "pad_token_id", None) or 0) + 1
    return max(1, limit)


def _own_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    check_tokenizer_links(folder)

    def read() -> Any:
        try:
            return AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
        except Exception:
            # Its class may be the model's own code, which is never run; tokenizer.json says all
            # that such a class may say, and needs none.
            if not (folder / "tokenizer.json").is_file():
                raise
            return PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)

    return _bounded(read, f"The tokenizer in {quoted(folder)} cannot be read")


T = TypeVar("T")


def _bounded(work: Callable[[], T], failed: str, characters: int = 0) -> T:
    """The result of work that the files of a tokenizer direct: they can make it raise anything, a
    panic of Rust included, which is no Exception; and a regular expression can make it endless.

    It runs in a thread of its own, as nothing else ends a wait for it: not a signal, and so not
    Ctrl-C. A thread that is given up works on until the process ends.

    Raises ModelError, which begins with `failed`.
    """
    seconds = _SECONDS + characters / _CHARACTERS_A_SECOND
    answer = in_daemon(work)
    wait([answer], seconds)
    if not answer.done():
        raise ModelError(
            f"{failed}: it took more than {seconds:.0f} seconds, which no ordinary one does; a "
            f"regular expression in its files may have no end."
        )
    error = answer.exception()
    if error is not None:
        raise ModelError(f"{failed}: {printable(str(error)[:200])}") from error
    return answer.result()
