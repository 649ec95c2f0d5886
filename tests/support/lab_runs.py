"""Experiments of the lab, run in this process."""

from __future__ import annotations


def conducted(name, model="demo", processes=1, done=None, check=lambda: None, **given):
    """(what was told, the result) of an experiment."""
    from qtui_core.lab.catalog import experiment_named
    from qtui_core.lab.conduct import conduct

    found = experiment_named(name)
    told = []
    result = conduct(found, found.settle(given), model, told.append, check, done, processes)
    return told, result
