"""Traces real classes in a process of its own (tracing.py). Nothing here imports torch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from platformdirs import user_cache_path

from qtui.engine.line_child import lines_of
from qtui_core.errors import UsageError, error_of
from qtui_core.memory.devices.device import Device
from qtui_core.memory.estimate import Estimate, estimate_recording
from qtui_core.memory.plan.run_plan import RunPlan, plan_on, resolve_for
from qtui_core.memory.replay.record import Recording, keep, known, read
from qtui_core.memory.shape.description import ModelDescription
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.shape.packings import STORED
from qtui_core.training import limits
from qtui_core.training.limits import check_traceable

#: What a recording depends on besides the question.
_TRACED_WITH: Final = ("qtui", "torch", "transformers", "peft", "bitsandbytes")


def traced_estimate(
    model: ModelDescription,
    shape: ModelShape,
    plan: RunPlan,
    device: Device | None = None,
    check: Callable[[str], None] = lambda doing: None,
) -> Estimate:
    """The estimate of a run of `plan`, from a trace of the class of `model`. It keeps the `shape`
    unless that is of a stand-in, or of the text part of a class that is traced whole. Raises
    UsageError for a plan that no trace follows, and what `trace` and `check` raise."""
    resolved = plan_on(resolve_for(shape, plan), device, shape)
    packing = shape.packing_under(resolved.quant)
    if packing is not None and resolved.quant == STORED:
        raise UsageError(
            f"The checkpoint is stored as {packing.title}, and a trace runs classes with "
            "plain weights; add --quant none to trace it unpacked."
        )
    config = model.config if packing is not None else _unquantized(model.config)
    part = "text_config" in config and shape.architecture != model.architecture
    own = None if part or shape.known == "assumed" else shape
    # Before the libraries are imported, which takes seconds.
    check_traceable(resolved)
    recording = trace(config, resolved, check)
    check("estimating")
    return estimate_recording(recording, own, resolved, device)


def _unquantized(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        key: _unquantized(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if key != "quantization_config"
    }


def trace(
    config: Mapping[str, Any], plan: RunPlan, check: Callable[[str], None] = lambda doing: None
) -> Recording:
    """The recording of a run of `plan` with the classes of the installed transformers and peft, on
    tensors without values. Every option of `plan` has a value. `check` is called repeatedly with
    what is being done; if it raises, the process is killed. A recording is kept in the user's cache
    folder, for the same question to the same versions.

    Raises ModelError and UsageError for what cannot be built, QtuiError where this system cannot
    trace or the process fails.
    """
    asked = json.dumps({"config": dict(config), "plan": asdict(plan)})
    path = _kept(asked)
    if (found := known(path)) is not None:
        return found
    doing, answer = ["importing the libraries"], "{}"
    module, parent = "qtui.engine.estimator.tracing", str(os.getpid())
    for line in lines_of("The trace", module, parent, check=lambda: check(doing[-1]), given=asked):
        if line.startswith('"'):
            doing.append(json.loads(line))
        answer = line
    told = json.loads(answer)
    if "error" in told:
        raise error_of(told["error"], told["code"])
    keep(path, answer)
    return read(told)


def _kept(asked: str) -> Path:
    """The file for the recording of a question to the installed versions."""
    versions = [f"{name} {_version(name)}" for name in _TRACED_WITH]
    # A checkout changes without a new version.
    sources = Path(limits.__file__).parent.rglob("*.py")
    versions += sorted(f"{path.name} {path.stat().st_mtime_ns}" for path in sources)
    digest = sha256("\n".join((*versions, asked)).encode()).hexdigest()
    return user_cache_path("qtui", appauthor=False) / "traces" / f"{digest}.json.gz"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # not installed, or run from its sources
        return ""
