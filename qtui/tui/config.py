"""The user's settings: a TOML file, then `QTUI_*` variables, then command line options.

The file is `config.toml` in the folder that platformdirs gives for qtui (on Linux
`~/.config/qtui/config.toml`), or the file that QTUI_CONFIG names:

    theme = "qtui-light"   # or "auto": light or dark as the terminal's background
    color = "256"          # auto, truecolor, 256, 16, none
    ascii = false          # true where the encoding of the terminal is no UTF
    start_panel = "formats"
    export_folder = "."    # where `e` writes
    state = true           # whether the app goes on where it was left (qtui/tui/state.py)
    threads = 4            # the most threads of each process that computes (0: one for each core)

    [keys]                 # a binding's id = its keys
    "app.quit" = "q,ctrl+q"

An unknown key is an error and is never ignored.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Any

from platformdirs import user_config_path, user_log_path

from qtui.screen.depth import COLOR_CHOICES
from qtui.tui.panels import PANELS
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError

_PREFIX = "QTUI_"
_CONFIG_VARIABLE = "QTUI_CONFIG"
_MOST_BYTES = 1 << 20
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off", "")


@dataclass(frozen=True)
class Settings:
    """The settings of the terminal app, all with defaults."""

    theme: str = "auto"
    color: str = "auto"
    ascii: bool = False
    start_panel: str = "formats"
    export_folder: str = "."
    state: bool = True
    threads: int = 0
    keys: Mapping[str, str] = field(default_factory=dict)


_CHOICES: dict[str, tuple[str, ...]] = {
    "color": COLOR_CHOICES,
    "start_panel": tuple(panel.id for panel in PANELS),
}
_KINDS = {bool: "true or false", int: "a whole number", str: "text in quotes"}
_NAMES = tuple(item.name for item in fields(Settings))


def config_file(environment: Mapping[str, str] | None = None) -> Path:
    """The file from which the configuration is read; it need not exist."""
    env = os.environ if environment is None else environment
    named = env.get(_CONFIG_VARIABLE)
    return Path(named) if named else user_config_path("qtui") / "config.toml"


def log_file() -> Path:
    """The file to which the app writes its log. The log never goes to the terminal."""
    return user_log_path("qtui") / "qtui.log"


def load_config(environment: Mapping[str, str] | None = None) -> Settings:
    """The configuration of this user.

    Raises UsageError if the file cannot be parsed, if it is named but missing, or if it or a
    variable has an unknown name or a wrong value.
    """
    env = os.environ if environment is None else environment
    path = config_file(env)
    config = Settings(ascii=not _draws())
    if os.path.exists(path):  # not the method of Path, which raises for a name that is too long
        config = _with_file(config, path)
    elif env.get(_CONFIG_VARIABLE):
        raise UsageError(f"{_CONFIG_VARIABLE} names {path}, which does not exist.")
    return _with_environment(config, env)


def _draws() -> bool:
    """Whether the stream to which Textual writes has box characters in its encoding."""
    stream = sys.__stderr__
    return stream is None or "utf" in (stream.encoding or "utf-8").lower()


def _with_file(config: Settings, path: Path) -> Settings:
    import tomllib

    if not path.is_file():  # a pipe would be waited for, and a device may never end
        raise UsageError(f"The configuration {path} cannot be read: it is not a regular file.")
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"The configuration {path} cannot be read: {error.strerror}.") from error
    if len(raw) > _MOST_BYTES:
        raise UsageError(f"The configuration {path} is over {_MOST_BYTES >> 20} MiB; shorten it.")
    try:
        data = tomllib.loads(raw.decode("utf-8"))
    except RecursionError:
        raise UsageError(f"The configuration {path} is nested too deeply.") from None
    except ValueError as error:  # also of a number with more digits than Python reads
        why = str(error).partition(":")[0] if "digits" in str(error) else error
        raise UsageError(f"The configuration {path} is not valid TOML: {why}.") from error
    for name, value in data.items():
        where = f"the configuration {path}"
        if name not in _NAMES:
            raise _unknown(name, where, _NAMES)
        config = replace(config, **{name: _checked(name, value, where)})
    return config


def _with_environment(config: Settings, env: Mapping[str, str]) -> Settings:
    names = {f"{_PREFIX}{name.upper()}": name for name in _NAMES if name != "keys"}
    for variable, text in env.items():
        if not variable.startswith(_PREFIX) or variable == _CONFIG_VARIABLE:
            continue
        if variable not in names:
            raise _unknown(variable, "the environment", (*names, _CONFIG_VARIABLE))
        name = names[variable]
        value: Any = text
        if isinstance(getattr(config, name), bool):
            value = _boolean(text, variable)
        elif isinstance(getattr(config, name), int):
            value = int(text) if text.isdecimal() and len(text) < 6 else text
        config = replace(config, **{name: _checked(name, value, f"the variable {variable}")})
    return config


def _boolean(text: str, variable: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise UsageError(f"The variable {variable} is {text!r}; it takes 1 or 0.")


def _checked(name: str, value: Any, where: str) -> Any:
    """The value; raises UsageError unless it has the setting's type and is one of its choices."""
    default = getattr(Settings(), name)
    if name == "keys":
        if isinstance(value, dict) and all(isinstance(keys, str) for keys in value.values()):
            return value
        raise UsageError(f'In {where}, keys is a table of lines like "app.quit" = "q".')
    if type(value) is not type(default):
        kind = _KINDS[type(default)]
        raise UsageError(f"In {where}, {name} is {_shown(value)}; it takes {kind}.")
    if name == "threads" and not 0 <= value <= 4096:
        raise UsageError(f"In {where}, threads is {_shown(value)}; it is from 1 to 4096, or 0.")
    choices = _CHOICES.get(name)
    if choices and value not in choices:
        known = ", ".join(choices)
        raise UsageError(f"In {where}, {name} is {_shown(value)}; it is one of {known}.")
    return value


def _shown(value: Any) -> str:
    """The value as a sentence has it, not longer than a line."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits, or of tables in each other
        return "a value that is too long to show"
    return text if len(text) <= 80 else f"{text[:80]}…"


def _unknown(name: str, where: str, known: tuple[str, ...]) -> UsageError:
    from difflib import get_close_matches

    close = get_close_matches(name, known, 1)
    hint = f"Did you mean {close[0]}?" if close else f"Known: {', '.join(sorted(known))}."
    return UsageError(f"Unknown setting {name!r} in {where}. {hint}")
