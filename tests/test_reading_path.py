"""A reader who follows a plan or a scheme, from what is typed to what is shown, passes only a few
files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from local_models import save
from reading_path import followed, way_of_plan

from qtui.engine.operations.maps import draw_map
from qtui.engine.operations.session import Session
from qtui.engine.requests import PictureRequest
from qtui.engine.task import Task
from qtui_core.codec import from_plain, to_plain
from qtui_core.schemes.scheme import Scheme
from qtui_core.schemes.stepping import step_scheme

CONFIG = Path(__file__).parent / "memory" / "configs" / "llama-3.2-1b.json"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("most", "options"),
    [(32, ()), (42, ("--method", "full", "--gpus", "4", "--zero", "2", "--gpu", "H100"))],
)
def test_a_plan_goes_through_few_files(qtui, most: int, options: tuple[str, ...]) -> None:
    way = way_of_plan(lambda: qtui("memory", str(CONFIG), *options))
    assert len(way.stays) <= most, f"\n{way}"
    assert way.files > 12, f"nothing was followed\n{way}"


def test_a_scheme_goes_through_few_files(tmp_path: Path) -> None:
    """It is typed, changed by a knob, sent as a line and read again, and drawn as a heatmap. What a
    panel does with it in between is not followed here."""
    save(tmp_path / "model.safetensors", w=np.ones((64, 128), np.float32))
    with followed(Scheme) as way:
        scheme = step_scheme(Scheme.parse("int4:group64"), "size", 1)
        typed = PictureRequest(
            model=str(tmp_path), tensor="w", schemes=(scheme,), rows=16, columns=16
        )
        asked = from_plain(PictureRequest, json.loads(json.dumps(to_plain(typed))))
        draw_map(Session(), Task(1, "map", asked, lambda *_: None))
    assert 8 <= len(way.stays) <= 15, f"\n{way}"
