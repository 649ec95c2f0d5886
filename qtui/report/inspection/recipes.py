"""The section on the recipes that `qtui inspect --sensitivity --export` has written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qtui.report.document import Block, Document, Facts, Section
from qtui_core.codec import printed
from qtui_core.inspection.recipes.recipe import ToolRecipe


def with_recipes(document: Document, written: Sequence[tuple[str, str, ToolRecipe]]) -> Document:
    """The report with the recipes of (tool, file, recipe): how to use each, and which tensors do
    not get what they were assigned. In JSON that is `exports`."""
    blocks: list[Block] = []
    data = []
    for tool, file, recipe in written:
        use = recipe.use.replace("FILE", file)
        blocks += [Facts(((tool, f"{file}, for {use}"),)), *recipe.sentences(tool)]
        entry = {"tool": tool, "file": file, "use": use, "notes": list(recipe.notes)}
        data.append({**entry, "stand_ins": printed(recipe.stand_ins)})
    return replace(
        document,
        sections=(*document.sections, Section("Recipes", tuple(blocks))),
        data={**document.data, "exports": data},
    )
