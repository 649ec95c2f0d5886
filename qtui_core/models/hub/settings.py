"""huggingface_hub as its environment variables set it up, and what is wrong with them."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stdout
from functools import cache
from urllib.parse import urlsplit

from qtui_core.errors import ModelError
from qtui_core.extras import MissingLibrary, importing
from qtui_core.models.hub.errors import reason_of, without_login
from qtui_core.models.quoting import quoted

#: Those that huggingface_hub reads as addresses or numbers while it is imported.
_READ_ON_IMPORT = ("HF_ENDPOINT", "HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT")


@cache
def load_library() -> None:
    """Import huggingface_hub; to be called before anything of it is used.

    Raises:
        MissingLibrary: it is not installed.
        ModelError: it does not start with the settings it finds.
    """
    try:
        # It prints what its own import fails with; standard output belongs to the program.
        with importing("Asking the hub", "huggingface_hub"), redirect_stdout(io.StringIO()):
            from huggingface_hub import HfApi, constants, utils  # noqa: F401
    except MissingLibrary:
        raise
    except Exception as error:
        # Its parsing of the environment is all that can fail here, with whatever int() and
        # its HTTP library raise.
        names = [name for name in _READ_ON_IMPORT if name in os.environ]
        check = (
            f"the environment variable{'s' if len(names) > 1 else ''} {' and '.join(names)}"
            if names
            else "the environment variables that begin with HF_"
        )
        raise ModelError(
            f"The hub cannot be asked with these settings ({reason_of(error)}). Check {check}."
        ) from error


def endpoint() -> str:
    """Address of the hub in use."""
    load_library()
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def check_settings() -> None:
    """Checks what every request needs, before the first request.

    Raises:
        ModelError: the address of the hub is invalid, or the login token cannot be sent.
    """
    address = endpoint()
    if not _is_address(address):
        shown = quoted(without_login(address))
        what = f"is {shown}, which is no address of a hub" if address else "is empty"
        raise ModelError(
            f"HF_ENDPOINT {what}: write it as https://huggingface.co, or unset the variable."
        )
    from huggingface_hub import constants, get_token

    # Looked at here because the error of the HTTP library would show the token.
    try:
        token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    except OSError:
        token = None  # The request itself meets the same, and its failure is explained.
    if token and not (token.isascii() and token.isprintable()):
        raise ModelError(
            "The login token holds a character that no token has. Copy it again into HF_TOKEN, "
            "or log in again with `hf auth login`."
        )


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        # Reading the port is what detects that it is invalid.
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
