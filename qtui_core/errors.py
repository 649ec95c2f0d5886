"""Failures that are reported to the user as a sentence.

Every error has the exit code of the program, so that the command line, the engine and the screens
agree.
"""

import errno
import re
from typing import Final

#: What errors say if memory ran out: those of PyTorch's allocators; of CUDA libraries that allocate
#: memory themselves; of CUDA's allocator if it cannot ask NVML which process holds the memory
#: (CUDACachingAllocator.cpp); of C++; of a library that is loaded; and of oneDNN, which makes the
#: code of a kernel when it is first used.
_NO_MEMORY: Final = re.compile(
    r"DefaultCPUAllocator|out of memory|_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation"
    r"|NVML_SUCCESS ==|bad_alloc|failed to map segment|Cannot allocate memory"
    r"|could not create a primitive(?! descriptor)"
)


class QtuiError(Exception):
    """Something that the user asked for could not be done. The message is one or two plain
    sentences: what was wrong, with which input, and what to do."""

    exit_code = 1

    def __str__(self) -> str:
        # What it quotes of a file or a library may be of any length; the end says what to do.
        text = super().__str__()
        return text if len(text) <= 2_000 else f"{text[:999]}…{text[-1000:]}"


class UsageError(QtuiError):
    """The request itself is wrong: a scheme, number or option that cannot be parsed."""

    exit_code = 2


class ModelError(QtuiError):
    """The model is missing, unreadable, malformed or unreachable."""

    exit_code = 3


def error_of(sentence: str, exit_code: int, *others: type[QtuiError]) -> QtuiError:
    """The error that a child reported by its sentence and exit code: one of the kinds above or of
    the `others`."""
    known: tuple[type[QtuiError], ...] = (QtuiError, UsageError, ModelError, *others)
    kinds = {kind.exit_code: kind for kind in known}
    return kinds.get(exit_code, QtuiError)(sentence)


def memory_ran_out(error: BaseException) -> bool:
    """Whether an error says that memory ran out, or was raised from one that says so of the memory
    of this machine; of a GPU's memory such an error says more itself."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    if isinstance(error, RuntimeError | ImportError | OSError) and _NO_MEMORY.search(str(error)):
        return True
    cause = error.__cause__
    return cause is not None and "CUDA" not in str(cause) and memory_ran_out(cause)
