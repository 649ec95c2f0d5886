"""The panels, in the order of their tabs.

An entry names its class by path, and the class is imported when its tab is first shown: the app
then starts in the time its first panel takes, whatever the others import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from qtui_core.dataclass import dataclass

if TYPE_CHECKING:
    from qtui.screen.panel.base import Panel


_HERE = "qtui.tui.panels"


@dataclass(frozen=True)
class PanelEntry:
    """A tab: its number key, its id, its title, where its class lives, and the titles of its
    views, which are known before the class is imported."""

    number: int
    id: str
    title: str
    path: str  # "module:Class"
    views: tuple[str, ...] = ()

    def load(self) -> type[Panel]:
        module, name = self.path.split(":")
        panel_class: type[Panel] = getattr(import_module(module), name)
        return panel_class


PANELS: tuple[PanelEntry, ...] = (
    PanelEntry(1, "formats", "Formats", f"{_HERE}.formats.panel:FormatsPanel"),
    PanelEntry(
        2,
        "quantize",
        "Quantize",
        f"{_HERE}.quantize.panel:QuantizePanel",
        ("Maps", "Outliers", "Activations", "Layers", "Model"),
    ),
    PanelEntry(
        3,
        "codebooks",
        "Codebooks",
        f"{_HERE}.codebooks.panel:CodebooksPanel",
        ("Codes", "Levels", "Budget", "Construction"),
    ),
    PanelEntry(
        4,
        "memory",
        "Memory",
        f"{_HERE}.memory.panel:MemoryPanel",
        ("Step", "Parts", "Savings", "Map", "GPUs", "Cases"),
    ),
    PanelEntry(
        5,
        "train",
        "Train",
        f"{_HERE}.train.panel:TrainPanel",
        ("Run", "Phases", "Parts", "Gap", "Loss", "Ranges", "Log", "Adapters"),
    ),
    PanelEntry(
        6,
        "numerics",
        "Numerics",
        f"{_HERE}.numerics.panel:NumericsPanel",
        ("Picture", "Table", "Runs"),
    ),
    PanelEntry(
        7,
        "hardware",
        "Hardware",
        f"{_HERE}.hardware.panel:HardwarePanel",
        ("GPUs", "Hierarchy", "Rates", "Roofline", "Operations"),
    ),
)


def tabs(width: int, active: str) -> list[tuple[int, PanelEntry, str]]:
    """The first column of each tab in `width` cells, its panel and its text: titles are full if all
    fit, else shortened except for the active one."""
    titles = [entry.title for entry in PANELS]
    if sum(len(title) + 4 for title in titles) > width:
        current = next((len(e.title) for e in PANELS if e.id == active), 0)
        room = (width - current - 4) // (len(PANELS) - 1) - 4
        keep = max(0, min(5, room))
        titles = [e.title if e.id == active else e.title[:keep] for e in PANELS]
    spans, start = [], 0
    for entry, title in zip(PANELS, titles, strict=True):
        text = f" {entry.number} {title} " if title else f" {entry.number} "
        spans.append((start, entry, text))
        start += len(text)
    return spans


def panel_entry(panel_id: str) -> PanelEntry:
    """The entry of a panel id. Raises KeyError for an unknown one."""
    for entry in PANELS:
        if entry.id == panel_id:
            return entry
    raise KeyError(panel_id)


def widget_id(panel_id: str) -> str:
    """The id of a panel's widget, by which stylesheets and the shell find it."""
    return f"panel-{panel_id}"
