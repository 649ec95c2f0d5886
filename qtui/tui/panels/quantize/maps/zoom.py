"""The window of a map: the part of the matrix that it shows."""

from __future__ import annotations

from qtui.screen.widgets.heatmap.grid import Window

# The least rows and columns of a window: fewer make no pattern.
LEAST = 8


def zoomed(area: Window, shape: tuple[int, int], at: tuple[int, int], factor: float) -> Window:
    """The window with its sides multiplied by `factor`; the element `at` keeps its place in it."""
    top, bottom = _side(area[0], area[1], shape[0], at[0], factor)
    left, right = _side(area[2], area[3], shape[1], at[1], factor)
    return top, bottom, left, right


def moved(area: Window, shape: tuple[int, int], rows: int, columns: int) -> Window:
    """The window moved `rows` down and `columns` right, but not beyond the matrix."""
    top = max(0, min(shape[0] - (area[1] - area[0]), area[0] + rows))
    left = max(0, min(shape[1] - (area[3] - area[2]), area[2] + columns))
    return top, top + area[1] - area[0], left, left + area[3] - area[2]


def _side(start: int, stop: int, length: int, at: int, factor: float) -> tuple[int, int]:
    size = stop - start
    wanted = min(length, max(min(LEAST, length), round(size * factor)))
    share = (at - start) / max(1, size)
    first = max(0, min(length - wanted, at - int(share * wanted)))
    return first, first + wanted
