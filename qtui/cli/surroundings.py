"""What surrounds the program on this machine: the terminal, the versions of installed libraries,
and its files. No library is imported to learn its version."""

from __future__ import annotations

import locale
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from qtui.report.surroundings import Files, Terminal
from qtui.screen.depth import NOTHING_SAID, TerminalSays, depth_of, light_of
from qtui.tui.config import config_file, load_config, log_file
from qtui_core.errors import QtuiError
from qtui_core.extras import installed_version
from qtui_core.models.hub import without_login

#: The distributions whose versions are reported, in this order.
DISTRIBUTIONS = (
    "qtui", "torch", "transformers", "peft", "bitsandbytes", "torchao", "compressed-tensors",
    "gguf", "ml_dtypes", "gfloat", "safetensors", "huggingface_hub", "numpy", "nvidia-ml-py",
    "textual", "rich", "click",
)  # fmt: skip

#: (A variable that only this multiplexer sets, its name).
_MULTIPLEXERS = (("TMUX", "tmux"), ("ZELLIJ", "Zellij"), ("STY", "GNU screen"))


def read_terminal(
    environment: Mapping[str, str] | None = None,
    color: str = "auto",
    ascii: bool = False,
    says: TerminalSays = NOTHING_SAID,
) -> Terminal:
    """The terminal of stdout, which `says` this, and how the app would use it with these
    options."""
    env = os.environ if environment is None else environment
    out = sys.stdout
    size = shutil.get_terminal_size() if out is not None and out.isatty() else None
    encoding = (getattr(out, "encoding", None) or locale.getpreferredencoding(False)).lower()
    term = env.get("TERM", "")
    multiplexer = next((name for variable, name in _MULTIPLEXERS if env.get(variable)), None)
    if multiplexer is None and term.startswith(("screen", "tmux")):
        multiplexer = term.partition("-")[0]
    depth, depth_why = depth_of(_chosen_color(color), env, says)
    light, light_why = light_of(env, says)
    return Terminal(
        columns=size.columns if size else None,
        lines=size.lines if size else None,
        term=term,
        colorterm=env.get("COLORTERM", ""),
        no_color=bool(env.get("NO_COLOR")),
        depth=depth,
        unicode="utf" in encoding and not ascii,
        encoding=encoding,
        multiplexer=multiplexer,
        ssh=bool(env.get("SSH_CONNECTION") or env.get("SSH_TTY")),
        depth_why=depth_why,
        light=light,
        light_why=light_why,
    )


def ask_terminal(color: str) -> TerminalSays:
    """What the terminal answers, as the app asks it; nothing if stdin or stdout is none."""
    from qtui.tui.first.screen import ask

    return ask(_chosen_color(color))


def _chosen_color(option: str) -> str:
    if option != "auto":
        return option
    try:
        return load_config().color
    except QtuiError:
        return "auto"  # `Files.config_error` says what is wrong with the file.


def installed_versions() -> dict[str, str | None]:
    """Version of each of DISTRIBUTIONS, None for one that is not installed."""
    return {name: installed_version(name) for name in DISTRIBUTIONS}


def read_files() -> Files:
    """The configuration, the log and the cache of the hub."""
    path, problem = config_file(), None
    try:
        load_config()
    except QtuiError as error:
        problem = str(error)
    cache, offline, endpoint = _hub()
    return Files(
        config=path,
        config_exists=path.exists(),
        config_error=problem,
        log=log_file(),
        cache=cache,
        models=None if cache is None else _count_models(cache),
        offline=offline,
        endpoint=endpoint,
    )


def _hub() -> tuple[Path | None, bool, str]:
    """Cache folder, whether the network is forbidden, and address, as huggingface_hub reads its
    variables."""
    try:
        from huggingface_hub import constants
    except Exception:  # The import may raise whatever int() and the HTTP library raise.
        return None, False, without_login(os.environ.get("HF_ENDPOINT", ""))
    address = without_login(str(constants.ENDPOINT))
    return Path(constants.HF_HUB_CACHE), bool(constants.HF_HUB_OFFLINE), address


def _count_models(cache: Path) -> int | None:
    try:
        return sum(1 for entry in os.scandir(cache) if entry.name.startswith("models--"))
    except FileNotFoundError:
        return 0
    except OSError:
        return None
