"""What each library is expected to do, as data. Standard library only."""

from __future__ import annotations

from qtui_core.conformance.catalogue.bitsandbytes import BITSANDBYTES
from qtui_core.conformance.catalogue.casts import GFLOAT, ML_DTYPES, TORCH
from qtui_core.conformance.catalogue.checkpoints import COMPRESSED_TENSORS, GGUF
from qtui_core.conformance.catalogue.torchao import TORCHAO
from qtui_core.conformance.convention import Library
from qtui_core.errors import UsageError

LIBRARIES: tuple[Library, ...] = (
    BITSANDBYTES,
    TORCHAO,
    COMPRESSED_TENSORS,
    GGUF,
    TORCH,
    ML_DTYPES,
    GFLOAT,
)


def find_library(name: str) -> Library:
    """The library of that name, in any case, with "-" or "_" between its words.

    Raises UsageError, which names all libraries.
    """
    wanted = name.strip().lower().replace("_", "-")
    for library in LIBRARIES:
        if library.name.replace("_", "-") == wanted:
            return library
    known = ", ".join(library.name for library in LIBRARIES)
    raise UsageError(f"No conventions of a library {name!r} are known here; known are {known}.")
