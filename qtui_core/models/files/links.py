"""Links in a model's folder: which are followed, and what is said of the others.

Whoever packs a model may put links in it, so opening it must not lead anywhere on this machine.
"""

from __future__ import annotations

import os
from pathlib import Path

from qtui_core.errors import ModelError
from qtui_core.models.quoting import quoted

#: The ends of names of what a tokenizer may be read from, and the one folder of such files.
_TOKENIZER_ENDS = (".json", ".txt", ".model", ".jinja", ".bpe", ".tiktoken")
_TEMPLATES = "additional_chat_templates"


def followed(folder: Path, name: str, chosen: Path | None = None) -> Path:
    """The path of a file of a model, whose links may lead to the model's own folder (which may be
    a link itself), and into the blobs of a hub cache.

    Args:
        folder: of the model.
        name: of the file in it; it need not exist.
        chosen: a file that the user named. Where it leads is the user's choice, and what lies
            beside that is followed too.

    Raises:
        ModelError: a link leads elsewhere.
    """
    path = folder / name
    real = os.path.realpath(path)
    homes = [os.path.realpath(folder)]
    if chosen is not None:
        homes.append(os.path.dirname(os.path.realpath(chosen)))
    if any(real.startswith(home.rstrip(os.sep) + os.sep) for home in homes) or _is_blob(real):
        return path
    raise ModelError(
        f"{quoted(path)} is a link to {quoted(real)}, which is outside the model's folder; such a "
        f"link is followed only into a hub cache. If you trust it, open the model in "
        f"{quoted(os.path.dirname(real))}, or put a copy of that file in the place of the link."
    )


def check_tokenizer_links(folder: Path) -> None:
    """Raises ModelError if a file that a tokenizer may be read from is a link that leads out of
    the folder of the model."""
    for place, ends in ((folder, _TOKENIZER_ENDS), (folder / _TEMPLATES, ("",))):
        for name in sorted(os.listdir(place)) if os.path.isdir(place) else ():
            if name.lower().endswith(ends):
                followed(folder, os.path.relpath(place / name, folder))


def _is_blob(real: str) -> bool:
    """Whether it is a file of a hub cache: …/blobs/HASH, with the folder `snapshots` beside it."""
    blobs = os.path.dirname(real)
    beside = os.path.join(os.path.dirname(blobs), "snapshots")
    return os.path.basename(blobs) == "blobs" and os.path.isdir(beside)
