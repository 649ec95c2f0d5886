"""Experiments of the lab, run in this process."""

from __future__ import annotations


def conducted(name, model="demo", processes=1, done=(), check=lambda: None, **given):
    """(what was reported, the result) of an experiment."""
    from qtui_core.lab.catalog import experiment_named
    from qtui_core.lab.conduct import Conductor

    found = experiment_named(name)
    told = []
    conductor = Conductor(found, found.settle(given), model, told.append, check, done)
    return told, conductor.run(processes)
