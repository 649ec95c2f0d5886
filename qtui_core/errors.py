"""Failures that are reported to the user as a sentence.

Every error has the exit code of the program, so that the command line, the engine and the screens
agree.
"""


class QtuiError(Exception):
    """Something that the user asked for could not be done. The message is one or two plain
    sentences: what was wrong, with which input, and what to do."""

    exit_code = 1


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
