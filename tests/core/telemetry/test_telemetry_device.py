"""GPUs as NVML reports them; each value may be missing."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from qtui_core.telemetry.device import GpuReading, read_devices


class NVMLError(Exception):
    pass


def driver(**answers: Any) -> SimpleNamespace:
    """A replacement for pynvml: an answer is returned, or raised if it is an NVMLError."""
    calls: list[str] = []

    def reply(name: str, default: Any) -> Callable[..., Any]:
        def function(*arguments: Any) -> Any:
            calls.append(name)
            answer = answers.get(name, default)
            if isinstance(answer, Exception):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return function

    memory = SimpleNamespace(used=3 << 30, total=24 << 30, free=21 << 30)
    return SimpleNamespace(
        NVMLError=NVMLError,
        calls=calls,
        nvmlInit=reply("init", None),
        nvmlShutdown=reply("shutdown", None),
        nvmlDeviceGetCount=reply("count", 1),
        nvmlDeviceGetHandleByIndex=reply("handle", lambda index: f"handle {index}"),
        nvmlDeviceGetName=reply("name", "NVIDIA L4"),
        nvmlDeviceGetMemoryInfo=reply("memory", memory),
    )


def test_a_device_is_named_and_measured() -> None:
    nvml = driver()
    assert read_devices(nvml) == (GpuReading(0, "NVIDIA L4", 3 << 30, 24 << 30),)
    assert nvml.calls[-1] == "shutdown"


def test_names_of_old_drivers_are_bytes() -> None:
    assert read_devices(driver(name=b"Tesla T4"))[0].name == "Tesla T4"


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ("name", GpuReading(0, None, 3 << 30, 24 << 30)),
        ("memory", GpuReading(0, "NVIDIA L4", None, None)),
        ("handle", GpuReading(0, None, None, None)),
    ],
)
def test_each_value_may_be_absent_alone(missing: str, expected: GpuReading) -> None:
    assert read_devices(driver(**{missing: NVMLError("Not Supported")})) == (expected,)


def test_no_driver_is_no_device() -> None:
    assert read_devices(driver(init=NVMLError("Driver Not Loaded"))) == ()
    assert read_devices(driver(count=NVMLError("Unknown"))) == ()


def test_the_real_library_answers_on_this_machine() -> None:
    for device in read_devices():
        assert device.memory_total is None or device.memory_total > 0
