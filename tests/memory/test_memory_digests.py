"""What must not change while the room is rebuilt: digests of recordings and reports.

`UPDATE_DIGESTS=1` writes them anew, for a change that is meant and named in the CHANGELOG.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qtui_core.codec import printed
from qtui_core.errors import UsageError
from qtui_core.memory.advice.report import report_of_plan
from qtui_core.memory.plan.run_plan import RunPlan, plan_as_run, resolve_for
from qtui_core.memory.replay.record import FREE
from qtui_core.memory.shape.description import ModelDescription
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.step.run import record_all

FOLDER = Path(__file__).parent
DIGESTS = FOLDER / "digests.json"
CONFIGS = sorted(path.stem for path in (FOLDER / "configs").glob("*.json"))
PLANS: dict[str, dict[str, Any]] = {
    "qlora": {"method": "qlora"},
    "full": {"method": "full"},
    "full, eager": {"method": "full", "attention": "eager"},
    "lora, padded, dropout": {"method": "lora", "padding_mask": True, "lora_dropout": 0.05},
    "inference": {"method": "inference", "generate": 8},
    "inference, eager": {"method": "inference", "generate": 8, "attention": "eager"},
    "full, fp32, repeated": {"method": "full", "repeat_kv": True, "dtype": "fp32"},
    "full, manual, batch 1": {"method": "full", "loop": "manual", "batch": 1},
}
REPORTED = ("qlora", "inference")


def digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def with_sorted_frees(events: Any) -> list[Any]:
    """Frees that follow each other leave the allocator in the same state, whatever their order."""
    found: list[Any] = []
    frees: list[Any] = []
    for event in events:
        if event[0] == FREE:
            frees.append(event)
            continue
        found += [*sorted(frees), event]
        frees = []
    return found + sorted(frees)


def digests_of(name: str) -> dict[str, str]:
    """Plan -> digest of the recording of the first layers, and of the whole report."""
    config = json.loads((FOLDER / "configs" / f"{name}.json").read_text())
    shape = shape_from_config(config)
    short = replace(shape.plain, layers=shape.layers[:3])
    model = ModelDescription(name, name, config, shape.architecture, "")
    found = {}
    for title, options in PLANS.items():
        asked = RunPlan(**{"batch": 2, "sequence": 64, **options})
        try:
            plan = plan_as_run(short, resolve_for(short, asked), None)
            found[title] = digest(with_sorted_frees(record_all(short, plan, 1).events))
            if title in REPORTED:
                wanted = resolve_for(shape, asked)
                plan = plan_as_run(shape, wanted, None)
                report = report_of_plan(model, shape, plan, None, None, asked=asked, wanted=wanted)
                found[f"{title}, report"] = digest(json.dumps(printed(report), sort_keys=True))
        except UsageError as error:
            found[title] = f"refused: {digest(str(error))}"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_recordings_and_reports_are_those_of_before(name: str) -> None:
    known = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}
    found = digests_of(name)
    if os.environ.get("UPDATE_DIGESTS"):
        known[name] = found
        DIGESTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    assert known[name] == found
