"""What the Quantize panel exports and copies of a captured activation."""

from __future__ import annotations

import numpy as np

from qtui.engine.answers.tensors import TensorEntry
from qtui.screen.widgets.heatmap.grid import HeatGrid
from qtui.tui.panels.quantize.export import panel_data, panel_text
from qtui.tui.panels.quantize.maps.picture import MapPicture, MapRequest
from qtui.tui.panels.quantize.shown import QuantizeShown
from qtui_core.quant import measure
from qtui_core.schemes.scheme import Scheme

ENTRY = TensorEntry("fc.weight", "BF16", (4, 6), 24, 48, True, True, 4)
INT4 = Scheme.parse("int4:row")
ERRORS = measure(np.zeros((4, 6), np.float32), INT4)
GRID = HeatGrid(rows=50, columns=6, grid_rows=1, grid_columns=1, cells=(0.5,))
MAP = MapPicture(MapRequest("error", ("int4:row",), "max", None, 1, 1), GRID, (0,), (0,))


def shown(source: str, picture: MapPicture | None) -> QuantizeShown:
    return QuantizeShown(
        "m", entry=ENTRY, source=source, schemes=[INT4], errors=[ERRORS], map=picture
    )


def stored(source: str, picture: MapPicture | None) -> tuple[object, object]:
    data = panel_data(shown(source, picture))
    assert data is not None
    return data["shape"], data["dtype"]


def first_line(source: str, picture: MapPicture | None) -> str:
    text = panel_text(shown(source, picture), "So.")
    assert text is not None
    return text.splitlines()[0]


def test_shape_and_dtype_are_of_the_stored_tensor_only_where_it_is_looked_at() -> None:
    assert stored("weight", MAP) == ([4, 6], "BF16")
    assert stored("input", MAP) == ([50, 6], None)
    assert stored("input", None) == (None, None)


def test_the_text_says_the_same() -> None:
    assert first_line("weight", MAP) == "fc.weight  [4 x 6] BF16"
    assert first_line("input", MAP) == "input of fc  [50 x 6]"
    assert first_line("input", None) == "input of fc"
