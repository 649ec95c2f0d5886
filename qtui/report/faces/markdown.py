"""The Markdown face: tables as GitHub renders them."""

from __future__ import annotations

from qtui.report.document import Document, Facts, HeatMap, Picture, Plotted, Table
from qtui.report.faces.heatmap import draw_lines
from qtui.report.faces.plain import plotted


def to_markdown(document: Document) -> str:
    """The report as Markdown. Names and values are escaped, so that they cannot be markup."""
    lines = [f"# {escape(document.title)}", ""]
    for section in document.sections:
        lines += [f"## {escape(section.title)}", ""]
        for block in section.blocks:
            if isinstance(block, Facts):
                lines += [f"- **{escape(name)}**: {escape(value)}" for name, value in block.pairs]
            elif isinstance(block, Table):
                lines += markdown_table(block)
            elif isinstance(block, HeatMap):
                lines += ["```", *draw_lines(block, ascii=True), "```"]
                if block.note:
                    lines += ["", escape(block.note)]
            elif isinstance(block, Plotted):
                lines += ["```", *plotted(block, ascii=True), "```"]
            elif isinstance(block, Picture):
                continue
            else:
                lines.append(escape(block))
            lines.append("")
    lines += [f"**{escape(document.conclusion)}**", ""]
    return "\n".join(lines)


def escape(text: str) -> str:
    for character in "\\`*_[]<>|&":
        text = text.replace(character, "\\" + character)
    return text


def markdown_table(table: Table) -> list[str]:
    lines = [
        "| " + " | ".join(escape(c.title) for c in table.columns) + " |",
        "|" + "|".join("---:" if c.numeric else "---" for c in table.columns) + "|",
    ]
    lines += ["| " + " | ".join(escape(cell) for cell in row) + " |" for row in table.rows]
    if table.note:
        lines += ["", escape(table.note)]
    return lines
