"""The HTML face: one self-contained page, readable in light and dark, no script."""

from __future__ import annotations

from html import escape

from qtui.report.document import Document, Facts, HeatMap, Picture, Plotted, Table
from qtui.report.faces.heatmap import draw_svg

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --line: #d1d9e0;
  --paper: #ffffff; --bar: #3b6ea8; --good: #1a7f37; --warn: #9a6700; --bad: #cf222e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --line: #30363d;
  --paper: #0d1117; --bar: #5b9bd5; --good: #3fb950; --warn: #d29922; --bad: #f85149; } }
body { margin: 2rem auto; max-width: 76rem; padding: 0 1rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.conclusion { border-left: 4px solid var(--bar); padding: .5rem 1rem; font-size: 1.1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid var(--line); text-align: left;
  white-space: nowrap; }
thead th { color: var(--soft); font-weight: 600; }
.n { text-align: right; } .good { color: var(--good); } .warn { color: var(--warn); }
.bad { color: var(--bad); } .dim, .note, dt { color: var(--soft); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; } dd { margin: 0;
  overflow-wrap: anywhere; }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; }
figcaption { color: var(--soft); } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
.heat { border: 1px solid var(--line); } .heat rect { fill: var(--bar); }
.heat text { fill: var(--soft); font-size: 11px; }
.bar { width: 10rem; } .bar span { display: block; height: .7rem; background: var(--bar); }
"""


def to_html(document: Document) -> str:
    """The report as a whole page, in which everything from a file is escaped."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(document.title)}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{escape(document.title)}</h1>",
        f'<p class="conclusion">{escape(document.conclusion)}</p>',
    ]
    for section in document.sections:
        parts.append(f"<section><h2>{escape(section.title)}</h2>")
        for block in section.blocks:
            if isinstance(block, Facts):
                parts.append(_facts(block))
            elif isinstance(block, Table):
                parts.append(_table(block))
            elif isinstance(block, HeatMap):
                note = f'<p class="note">{escape(block.note)}</p>' if block.note else ""
                parts.append(f'<div class="scroll">{draw_svg(block)}</div>{note}')
            elif isinstance(block, Plotted):
                from qtui.report.pictures.svg import picture_svg

                parts.append(f'<figure class="scroll">{picture_svg(block.picture)}</figure>')
            elif isinstance(block, Picture):
                caption = f"<figcaption>{escape(block.caption)}</figcaption>"
                parts.append(f"<figure>{block.svg}{caption}</figure>")
            else:
                parts.append(f"<p>{escape(block)}</p>")
        parts.append("</section>")
    parts.append("</body></html>")
    return "\n".join(parts) + "\n"


def _facts(facts: Facts) -> str:
    pairs = "".join(f"<dt>{escape(n)}</dt><dd>{escape(v)}</dd>" for n, v in facts.pairs)
    return f"<dl>{pairs}</dl>"


def _table(table: Table) -> str:
    def cell(tag: str, text: str, numeric: bool) -> str:
        css = ' class="n"' if numeric else ""
        return f"<{tag}{css}>{escape(text)}</{tag}>"

    head = "".join(cell("th", c.title, c.numeric) for c in table.columns)
    if table.bars:
        head += f"<th>{escape(table.bar_title)}</th>"
    rows = []
    for index, row in enumerate(table.rows):
        cells = "".join(
            cell("td", text, column.numeric)
            for text, column in zip(row, table.columns, strict=True)
        )
        if table.bars:
            share = 100 * min(1.0, max(0.0, table.bars[index]))
            cells += f'<td class="bar"><span style="width:{share:.1f}%"></span></td>'
        tone = table.tones[index] if table.tones else ""
        rows.append(f'<tr class="{tone}">{cells}</tr>' if tone else f"<tr>{cells}</tr>")
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{note}"
    )
