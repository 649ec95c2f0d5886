"""The document of `qtui calibrate`: the measured profile of a GPU, and its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qtui.report.document import Block, Column, Document, Facts, Section, Table, figures
from qtui_core.memory.devices.profile import MeasuredStep, Profile
from qtui_core.quantities import format_bytes, plural


def calibrate_document(profile: Profile, path: Path | None) -> Document:
    """The report on a profile; `path` is the file it was written to, or None."""
    sections = [Section("GPU", (_gpu(profile),)), Section("Measured", (_measured(profile),))]
    if profile.steps:
        sections.append(Section("Steps", tuple(_steps(profile))))
    data: dict[str, Any] = json.loads(profile.to_json())
    data["path"] = None if path is None else str(path)
    data["context_bytes"] = profile.calibration.context
    return Document(
        f"Profile of {profile.device}",
        tuple(sections),
        _conclusion(profile, path),
        data,
    )


def _gpu(profile: Profile) -> Facts:
    versions = ", ".join(f"{name} {version}" for name, version in profile.versions.items())
    pairs = [("device", profile.device), ("driver", profile.driver or "unknown")]
    if profile.total_memory is not None:
        pairs.append(("memory", format_bytes(profile.total_memory)))
    return Facts((*pairs, ("versions", versions), ("made", profile.made)))


def _measured(profile: Profile) -> Facts:
    def size(value: int | None) -> str:
        return (
            "not reported by the driver"
            if value is None
            else f"{format_bytes(value)} ({value:,} B)"
        )

    pairs = [
        ("context, first tensor", size(profile.context_first)),
        ("context, after products", size(profile.context_products)),
        ("context, in estimates", size(profile.calibration.context)),
        ("workspaces, forward", size(profile.workspace_forward)),
        ("workspaces, training", size(profile.workspace_training)),
    ]
    if profile.context_basis:
        pairs.insert(0, ("process found by", profile.context_basis))
    for nbytes, reserved in profile.segments.items():
        pairs.append((f"segment for {format_bytes(int(nbytes))}", format_bytes(reserved)))
    settings = ", ".join(f"{name}={value}" for name, value in profile.allocator.items())
    if settings:
        pairs.append(("allocator", settings))
    return Facts(tuple(pairs))


def _steps(profile: Profile) -> list[Block]:
    columns = (
        Column("plan", key=True),
        *figures(
            "allocated", "estimated", "reserved", "estimated", "process", "estimated", "context"
        ),
    )
    rows = tuple(_row(step) for step in profile.steps if not step.failure)
    failed = [f"{step.name}: {step.failure}" for step in profile.steps if step.failure]
    note = "Estimated as before this calibration."
    return [*([Table(columns, rows, note=note)] if rows else []), *failed]


def _row(step: MeasuredStep) -> tuple[str, ...]:
    def size(value: int | None) -> str:
        return "–" if value is None else format_bytes(value)

    return (
        step.name,
        size(step.allocated), size(step.estimated_allocated),
        size(step.reserved), size(step.estimated_reserved),
        size(step.process), size(step.estimated_process),
        size(step.context),
    )  # fmt: skip


def _conclusion(profile: Profile, path: Path | None) -> str:
    context = profile.calibration.context
    if context is None:
        what = (
            "The driver does not report the memory of a process, so estimates keep the published "
            "figure for the context"
        )
    else:
        what = f"A process takes {format_bytes(context)} besides its segments"
    both = profile.workspace_training
    kept = "no workspace stays" if not both else f"workspaces of {format_bytes(both)} stay"
    where = "nothing was written" if path is None else f"estimates for this GPU use it from {path}"
    failed = sum(bool(step.failure) for step in profile.steps)
    steps = ""
    if failed:
        whose = "its" if failed == 1 else "their"
        steps = (
            f"; {failed} of {plural(len(profile.steps), 'run')} failed, and {whose} reason is above"
        )
    return f"{what}; {kept} after a backward pass{steps}. {where[0].upper()}{where[1:]}."
