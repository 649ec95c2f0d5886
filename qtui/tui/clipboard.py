"""Copies text from the terminal app, by the first method that works.

In tmux, `tmux load-buffer -w -`: by default tmux silently drops the OSC 52 sequence of an app.
Elsewhere OSC 52, which also works over ssh. If neither is possible, a file.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from platformdirs import user_cache_path

from qtui.screen.panel.host import Severity
from qtui.tui.terminal import one_line
from qtui_core.dataclass import dataclass
from qtui_core.errors import QtuiError
from qtui_core.files import target_of
from qtui_core.models.quoting import printable_lines

# xterm and others cut an OSC 52 sequence with more base64 bytes than this.
_OSC52_LIMIT = 74_994

LoadBuffer = Callable[[str], Awaitable[bool]]


@dataclass(frozen=True)
class Copied:
    """Where the text went, in words that follow "Copied to"."""

    where: str


async def copy_text(
    text: str,
    *,
    send_osc52: Callable[[str], None] | None,
    environment: Mapping[str, str] | None = None,
    load_buffer: LoadBuffer | None = None,
    file: Path | None = None,
) -> Copied:
    """Copies `text`; `send_osc52` is None if the terminal does not support the sequence.

    Raises OSError or QtuiError if not even the file can be written.
    """
    text = printable_lines(text)  # a shell into which it is pasted would obey control characters
    env = os.environ if environment is None else environment
    if env.get("TMUX") and await (load_buffer or _tmux_load_buffer)(text):
        return Copied("the tmux buffer and its terminal's clipboard")
    if send_osc52 and not env.get("TMUX") and len(text.encode()) * 4 / 3 <= _OSC52_LIMIT:
        send_osc52(text)
        return Copied("the terminal's clipboard (OSC 52)")
    path = file or user_cache_path("qtui") / "copied.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    target_of(str(path), force=True).write(text)
    return Copied(f"the file {path}")


async def _tmux_load_buffer(text: str) -> bool:
    try:
        process = await asyncio.create_subprocess_exec(
            "tmux",
            "load-buffer",
            "-w",
            "-",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        await asyncio.wait_for(process.communicate(text.encode()), timeout=2)
    except (FileNotFoundError, TimeoutError):
        return False
    return process.returncode == 0


async def command_copied(
    words: tuple[str, ...] | str, send_osc52: Callable[[str], None] | None
) -> tuple[str, Severity]:
    """Copies the command of `qtui` with these words, and shows it. A text says why there is
    none."""
    if isinstance(words, str):
        return words, "warning"
    line = shlex.join(("qtui", *words))
    said, severity = await copied(line, send_osc52)
    return f"{line}\n{said}", severity


async def copied(
    text: str | None, send_osc52: Callable[[str], None] | None
) -> tuple[str, Severity]:
    """Copies a panel's text (None or empty if there is nothing to copy), and says what happened."""
    if not text:
        return "There is nothing to copy here.", "warning"
    try:
        found = await copy_text(text, send_osc52=send_osc52)
    except (OSError, QtuiError) as error:
        return f"Nothing was copied: {one_line(error)}", "error"
    return f"Copied to {found.where}.", "information"
