"""An interruption is obeyed wherever it occurs."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from qtui.cli.memory_report import interruptible


class InterruptedWhenFreed:
    """Ctrl+C occurs while Python frees this object."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@interruptible()
def free_and_go_on() -> None:
    buffer = InterruptedWhenFreed()
    del buffer  # Python drops what is raised here
    time.sleep(5)


def test_an_interruption_in_a_finalizer_is_not_lost(capsys, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # as it was, afterwards
    with pytest.raises(KeyboardInterrupt):
        free_and_go_on()
    assert capsys.readouterr().err == ""


def test_other_failures_in_finalizers_are_still_told(monkeypatch):
    class Broken:
        def __del__(self) -> None:
            raise ValueError("broken")

    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: told.append(dropped.exc_type))
    with interruptible():
        buffer = Broken()
        del buffer
    assert told == [ValueError]
