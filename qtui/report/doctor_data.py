"""The JSON face of the machine in `qtui doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qtui.report.doctor import Surroundings


def surroundings_data(around: Surroundings) -> dict[str, Any]:
    """Bytes are integers, unknown is null."""
    terminal, machine, files = around.terminal, around.machine, around.files
    driver = around.driver
    return {
        "terminal": {
            "columns": terminal.columns,
            "lines": terminal.lines,
            "term": terminal.term or None,
            "colorterm": terminal.colorterm or None,
            "no_color": terminal.no_color,
            "colors": str(terminal.depth),
            "unicode": terminal.unicode,
            "encoding": terminal.encoding,
            "multiplexer": terminal.multiplexer,
            "ssh": terminal.ssh,
        },
        "machine": {
            "system": machine.system,
            "kernel": machine.kernel,
            "architecture": machine.architecture,
            "python": machine.python,
            "python_path": machine.python_path,
            "processor": machine.processor,
            "instructions": list(machine.instructions),
            "cores": machine.cores,
            "memory_total_bytes": machine.memory_total,
            "memory_available_bytes": machine.memory_available,
            "memory_limit_bytes": machine.memory_limit,
        },
        "driver": None
        if driver is None
        else {"version": driver.version, "cuda": driver.cuda and list(driver.cuda)},
        "gpus": [
            {
                "index": device.index,
                "name": device.name,
                "memory_used_bytes": device.memory_used,
                "memory_total_bytes": device.memory_total,
            }
            for device in around.devices
        ],
        "libraries": dict(around.versions),
        "files": {
            "config": str(files.config),
            "config_exists": files.config_exists,
            "config_error": files.config_error,
            "log": str(files.log),
            "hub_cache": None if files.cache is None else str(files.cache),
            "hub_models": files.models,
            "hub_offline": files.offline,
            "hub_endpoint": files.endpoint or None,
        },
    }
