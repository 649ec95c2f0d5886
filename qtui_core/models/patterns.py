"""Regular expressions by which a configuration names modules. Somebody else wrote them."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Final

from qtui_core.errors import ModelError
from qtui_core.models.quoting import quoted

_MOST_STEPS: Final = 30_000_000
_MOST_CHARACTERS: Final = 10_000


@lru_cache(maxsize=4096)
def takes_forever(text: str, length: int) -> bool:
    """Whether matching a name of that length may take forever: what is repeated shares the
    characters of the name in each possible way, for each choice of alternatives."""
    # With the flag x, blanks may stand between a group and what repeats it.
    if len(text) > _MOST_CHARACTERS or re.search(r"\)[*+{]|\(\?[a-zA-Z]*x", text):
        return True
    repeated = len(re.findall(r"(?<!\()[*+?{]\??", text))
    choices = math.prod(1 + piece.count("|") for piece in text.split(")"))
    return choices * math.comb(length + repeated, repeated) > _MOST_STEPS


def matches(text: str, name: str, after: str = "") -> bool:
    """Whether a pattern of a quantization_config, followed by `after`, matches the beginning of a
    name. What is no regular expression matches none.

    Raises ModelError if it may take forever.
    """
    if takes_forever(text, len(name)):
        raise ModelError(
            f"The quantization_config has the pattern {quoted(text)}, which may take forever to "
            f"match: write one with fewer repetitions, and none of a group."
        )
    pattern = _compiled(f"(?:{text}){after}" if after else text)
    return pattern is not None and pattern.match(name) is not None


@lru_cache(maxsize=4096)
def _compiled(text: str) -> re.Pattern[str] | None:
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError):
        return None
