"""The facts about this machine that `qtui doctor` reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from qtui_core.codec import or_null
from qtui_core.dataclass import dataclass
from qtui_core.telemetry.machine import Machine
from qtui_core.telemetry.readings import DeviceReading, Driver


@dataclass(frozen=True)
class Terminal:
    """The terminal. `columns` and `lines` are None if stdout is no terminal; `depth` is the number
    of colours that qtui will use, `light` whether its background is light, each with the reason."""

    columns: int | None
    lines: int | None
    term: str
    colorterm: str
    no_color: bool
    depth: str
    unicode: bool
    encoding: str
    multiplexer: str | None
    ssh: bool
    depth_why: str = ""
    light: bool = False
    light_why: str = ""

    PRINTED = (
        "columns",
        "lines",
        ("term", or_null("term")),
        ("colorterm", or_null("colorterm")),
        "no_color",
        ("colors", "depth"),
        "unicode",
        "encoding",
        "multiplexer",
        "ssh",
        ("colors_why", "depth_why"),
        ("light_background", "light"),
        ("background_why", "light_why"),
    )


@dataclass(frozen=True)
class Files:
    """The user's files and folders, and what is wrong with the configuration ("" if nothing).

    `models` is the number of models in the cache of the hub; None if it cannot be read.
    """

    config: Path
    config_exists: bool
    config_error: str | None
    log: Path
    cache: Path | None
    models: int | None
    offline: bool
    endpoint: str

    PRINTED = (
        "config",
        "config_exists",
        "config_error",
        "log",
        ("hub_cache", "cache"),
        ("hub_models", "models"),
        ("hub_offline", "offline"),
        ("hub_endpoint", or_null("endpoint")),
    )


@dataclass(frozen=True)
class Surroundings:
    """All facts about the machine."""

    terminal: Terminal
    machine: Machine
    driver: Driver | None
    devices: tuple[DeviceReading, ...]
    versions: Mapping[str, str | None]
    files: Files

    PRINTED = (
        "terminal",
        "machine",
        "driver",
        ("gpus", "devices"),
        ("libraries", "versions"),
        "files",
    )
