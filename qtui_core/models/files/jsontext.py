"""JSON that somebody else wrote, read without trusting it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from qtui_core.errors import ModelError
from qtui_core.models.quoting import quoted

#: Commas and opening brackets a document may hold. Each stands for at most a few Python
#: objects, so this bounds memory to a few hundred megabytes where the text alone (`[],[],…`)
#: could ask for forty times its own size. 440,000 tensors fit.
MAX_STRUCTURE = 4_000_000


class _Duplicate(ValueError):
    pass


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _Duplicate(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return result


def load_object(raw: bytes, what: str, *, unique: bool) -> dict[str, Any]:
    """The JSON object in `raw` (UTF-8).

    Args:
        what: names the document in messages, as the subject of a sentence.
        unique: refuse an object that has the same key twice, at any depth; else the last
            one counts, as every JSON reader has it.

    Raises:
        ModelError: invalid UTF-8, not JSON, not an object, nested or structured beyond any
            real document, or holding text that is no Unicode (a lone surrogate escape).
    """
    structure = sum(raw.count(c) for c in (b",", b"[", b"{"))
    if structure > MAX_STRUCTURE:
        raise ModelError(
            f"{what} holds {structure:,} JSON elements, more than any real model "
            f"(the limit is {MAX_STRUCTURE:,})."
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{what} is not valid UTF-8 (byte {error.start}).") from error
    try:
        value = json.loads(text, object_pairs_hook=_unique_pairs if unique else None)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except _Duplicate as error:
        raise ModelError(f"{what} has the name {quoted(error.args[0])} twice.") from error
    except RecursionError as error:
        raise ModelError(f"{what} is nested too deeply to be real.") from error
    except json.JSONDecodeError as error:
        raise ModelError(
            f"{what} is not valid JSON ({error.msg}, line {error.lineno} column {error.colno})."
        ) from error
    except UnicodeEncodeError as error:
        raise ModelError(f"{what} holds text that is not valid Unicode.") from error
    except ValueError as error:  # a number of more digits than Python converts
        raise ModelError(f"{what} holds a number that cannot be read.") from error
    if not isinstance(value, dict):
        raise ModelError(f"{what} is not a JSON object.")
    return value
