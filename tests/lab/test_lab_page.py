"""The page of the lab in the documentation has every experiment with its picture."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from every import every

from qtui_core.lab.catalog import EXPERIMENTS

DOCS = Path(__file__).parents[2] / "docs"


def test_every_experiment_is_on_the_page_with_its_picture():
    page = (DOCS / "lab.md").read_text()

    def check(row):
        assert f"## {row.question}" in page
        assert f"`qtui lab {row.name}`" in page
        assert f"](lab/{row.name}.svg)" in page
        ElementTree.parse(DOCS / "lab" / f"{row.name}.svg")

    every(EXPERIMENTS, check)
