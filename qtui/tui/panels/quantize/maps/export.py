"""The maps as JSON, and as a table with a row for each cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from qtui.tui.panels.quantize.maps.picture import MapPicture

HEADER = (
    "map", "schemes", "pooling", "first_row", "last_row", "first_column", "last_column", "value",
    "row", "column",
)  # fmt: skip


def maps_data(pictures: Sequence[MapPicture]) -> list[dict[str, Any]]:
    """Each map: what it shows, and its cells row by row."""
    return [
        {
            "kind": picture.request.kind,
            "schemes": list(picture.request.schemes),
            "pooling": picture.request.pooling,
            "first_row": picture.grid.area[0],
            "last_row": picture.grid.area[1] - 1,
            "first_column": picture.grid.area[2],
            "last_column": picture.grid.area[3] - 1,
            "rows": picture.grid.grid_rows,
            "columns": picture.grid.grid_columns,
            "cells": list(picture.grid.cells),
        }
        for picture in pictures
    ]


def maps_table(pictures: Sequence[MapPicture]) -> Iterator[Sequence[object]]:
    """A header, then a row for each cell: the elements it covers, its value, and the element
    (`row`, `column`) that the cursor points at there."""
    yield HEADER
    for picture in pictures:
        request, grid = picture.request, picture.grid
        what = request.kind, " ".join(request.schemes), request.pooling
        for row in range(grid.grid_rows):
            rows = grid.first_row(row), grid.first_row(row + 1) - 1
            for column in range(grid.grid_columns):
                columns = grid.first_column(column), grid.first_column(column + 1) - 1
                value = grid.cells[row * grid.grid_columns + column]
                yield *what, *rows, *columns, value, *picture.element_at(row, column)
