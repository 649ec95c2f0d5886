"""Runs experiments of the lab in this process, some on tiny models, and makes results without
runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from qtui_core.job import IDLE


def conducted(name, model="demo", processes=1, done=(), check=lambda: None, **given):
    """Runs an experiment; returns (its events, its result)."""
    from qtui_core.lab.catalog import experiment_named
    from qtui_core.lab.runner import LabRunner

    found = experiment_named(name)
    told = []
    runner = LabRunner(found, found.settle(given), model, told.append, check, done)
    return told, runner.run(processes)


def outcomes_of(name, *keys, model="demo", **given):
    """Runs some jobs of an experiment; returns (outcomes by job, findings). For claims that need
    neither a floor nor other jobs. `keys` are the names of jobs without their seeds; without any,
    all jobs run."""
    from qtui_core.lab.catalog import experiment_named

    found = experiment_named(name)
    settings, module = found.settle(given), found.module()
    outcomes = {
        job.key: job.run(IDLE)
        for job in module.jobs(settings, model)
        if not keys or {job.key, job.key.rpartition(" ")[0]} & {*keys}
    }
    return outcomes, module.conclude(settings, outcomes)


def fits(verdict, first):
    """Whether a sentence is whole on 120 columns and 40 lines and on 80 columns and 24 lines, and
    has the words `first`, of its first clause with the cure, in its first three lines there."""
    import textwrap

    from qtui.screen.widgets.sentence import lines_kept

    sizes = ((120, 40), (80, 24))
    whole = all(len(textwrap.wrap(verdict, w - 2)) <= lines_kept(w, h) for w, h in sizes)
    return whole and first in " ".join(textwrap.wrap(verdict, 78)[:3])


@contextmanager
def little_held_out(windows: int = 4) -> Iterator[None]:
    """Within the block, only `windows` windows are held out. The loss of all 128 at the end of a
    run takes as long as eleven steps; four are enough for claims about the losses of steps."""
    import pytest

    from qtui_core.lab.training import tasks

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "HELD_OUT", windows * tasks.WINDOW)
        tasks.subject_of.cache_clear()
        yield
    tasks.subject_of.cache_clear()


def small_subject(batch=1, sequence=32, windows=1):
    """The model `nano` on few tokens: a step takes a hundredth of a second."""
    from dataclasses import replace

    from qtui_core.lab.training.tasks import TASKS, LabSubject

    subject = LabSubject(replace(TASKS["nano"], batch=batch, sequence=sequence))
    subject.held_out = subject.held_out[:windows]
    return subject


def made_run(*losses, **more):
    """A made-up run of the lab with these losses and other fields."""
    from qtui_core.lab.training.twins import TrainedRun

    given = {"held_before": None, "held_after": losses[-1], "seconds": 0.1} | more
    return TrainedRun(losses, **given)


def trained(off, steps=20, **more):
    """A made-up run whose losses are `off` above those of its twin, which are 0; None for `off`
    means that it diverged."""
    from qtui_core.lab.training.twins import TrainedRun

    if off is None:
        return TrainedRun((1.0, 1.0, float("nan")), None, None, 0.1, 3, "a.weight", **more)
    losses = tuple(1.3 - 0.001 * step + off for step in range(steps))
    return TrainedRun(losses, 1.34, 1.3 + off, 0.1, **more)
