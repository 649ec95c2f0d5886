"""What goes wrong between here and the hub, as sentences."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from qtui_core.errors import ModelError
from qtui_core.models.quoting import quoted


class Unreachable(ModelError):
    """The hub gave no answer: no network, no server, or offline mode."""


class Unknown(ModelError):
    """The hub has no such model, or does not show it to this user."""


def refused(status: int, headers: Mapping[str, str], subject: str) -> ModelError:
    """The sentence for an HTTP status of the hub.

    Args:
        status: HTTP status code.
        headers: of the response; `X-Error-Code` is GatedRepo, RevisionNotFound, …
        subject: what was asked for: "org/name", "org/name@revision", or that and a file.
    """
    code = headers.get("x-error-code")
    name = quoted(subject)
    repo = subject.partition("@")[0].partition(" ")[0]
    if code == "GatedRepo":
        return ModelError(
            f"{name} is gated: ask for access on its page on the hub, then log in with "
            f"`hf auth login` or set HF_TOKEN."
        )
    if code == "RevisionNotFound":
        return ModelError(f"{quoted(repo)} is on the hub, but has no such revision: {name}.")
    if code == "EntryNotFound":
        return ModelError(f"{name} is not on the hub.")
    if headers.get("x-error-message", "").startswith("Invalid credentials"):
        return ModelError(
            f"The hub rejects the login token it was shown for {name}; log in again with "
            f"`hf auth login`, or unset HF_TOKEN."
        )
    if status in (401, 404) or code == "RepoNotFound":
        return Unknown(
            f"The hub knows no model {quoted(repo)}, or it is private and needs a login "
            f"(`hf auth login`, or HF_TOKEN)."
        )
    if status == 403:
        return ModelError(
            f"The hub refuses access to {name}; ask for access on its page, and check what "
            f"your token permits."
        )
    if status == 429:
        return ModelError(f"The hub limits requests at the moment; ask for {name} again later.")
    if status >= 500:
        return Unreachable(f"The hub has a problem (it answered {status}); try {name} again later.")
    return ModelError(f"The hub answered {status} when asked for {name}.")


def unreachable(subject: str, endpoint: str, causes: Sequence[BaseException]) -> Unreachable:
    """The sentence for a hub that gave no answer. `causes`: as `chain` gives them."""
    name = quoted(subject)
    if any(type(cause).__name__ == "OfflineModeIsEnabled" for cause in causes):
        variable = next(
            (v for v in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if os.environ.get(v)),
            "HF_HUB_OFFLINE",
        )
        return Unreachable(f"{name} is not in the hub cache, and {variable} forbids fetching it.")
    return Unreachable(
        f"Could not get {name} from {without_login(endpoint)} ({reason_of(causes[-1])}). Check the "
        f"network connection, or open a model that is already on this machine."
    )


def reason_of(error: BaseException) -> str:
    """What an exception says, on one line, short, and without a full stop of its own."""
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return quoted(text, 120)[1:-1]


def unusable(error: OSError) -> ModelError:
    """The sentence for a hub cache, or a file of the login token in it, that the system refuses."""
    return ModelError(
        f"The hub cache cannot be used: {quoted(error.filename)}: {error.strerror}. HF_HOME says "
        f"where it is."
    )


def without_login(address: str) -> str:
    """An address without a user and password, also where it is no good address: all before the last
    @ may belong to them."""
    return re.sub(r"^([a-z]+://)?.*@", r"\1", address, flags=re.IGNORECASE | re.DOTALL)


def chain(error: BaseException, handled: BaseException | None = None) -> list[BaseException]:
    """An exception and what led to it, the root cause last. Python notes as a context whatever was
    being handled at the time, so the chain ends before `handled`."""
    causes: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current is not handled and current not in causes:
        causes.append(current)
        context = None if current.__suppress_context__ else current.__context__
        current = current.__cause__ or context
    return causes
