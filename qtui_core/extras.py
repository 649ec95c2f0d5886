"""Libraries that come with an extra of this package, and the error if one is missing.

Without any extra, qtui reads local models, and knows formats and memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

from qtui_core.errors import UsageError, memory_ran_out
from qtui_core.quantities import phrase

#: The packages of each extra in pyproject.toml, by their names in the index.
EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "hub": ("huggingface_hub",),
    "torch": ("torch", "transformers", "peft", "bitsandbytes", "safetensors"),
    "lab": ("torchao",),
    "checkpoints": ("gguf", "compressed-tensors"),
    "web": ("textual-serve",),
}


class MissingLibrary(UsageError):
    """A library that is needed is not installed, or cannot be imported."""


def require(purpose: str, *libraries: str) -> None:
    """Raises MissingLibrary if one of `libraries` is not installed; imports none of them. `purpose`
    is the subject of the sentence: "A run"."""
    absent = [name for name in libraries if find_spec(name.replace("-", "_")) is None]
    if absent:
        are = "is" if len(absent) == 1 else "are"
        what = f"{purpose} takes {phrase(absent)}, which {are} not installed"
        raise MissingLibrary(f"{what}: {install_command(*absent)}.")


@contextmanager
def importing(purpose: str, *libraries: str) -> Iterator[None]:
    """A block around the imports of `libraries`. Raises what `require` raises, and MissingLibrary
    if what is installed lacks something that is imported."""
    require(purpose, *libraries)
    try:
        yield
    except ImportError as error:
        if memory_ran_out(error):
            raise
        raise MissingLibrary(
            f"{purpose} takes {phrase(libraries)}, of which a part is missing or too old "
            f"({error}): {install_command(*libraries)}."
        ) from error


def installed_version(library: str) -> str | None:
    """The version of a library; None where it is not installed."""
    from importlib import metadata  # which takes a while

    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def install_command(*libraries: str) -> str:
    """The command that installs `libraries`: by the extras that include them, else by their
    names."""
    extras = [extra for extra, names in EXTRAS.items() if not set(names).isdisjoint(libraries)]
    brought = {name for extra in extras for name in EXTRAS[extra]}
    others = [name for name in libraries if name not in brought]
    return " ".join(["pip install", *([f"'qtui[{','.join(extras)}]'"] if extras else []), *others])
