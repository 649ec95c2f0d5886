"""The HTML face: one self-contained page, readable in light and dark, on a phone and on paper. A
few lines of script sort its tables; without them it is the same page."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape
from typing import Final

from qtui.report.document import Document, Facts, HeatMap, Picture, Plotted, Table
from qtui.report.faces.heatmap import draw_svg

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --line: #d1d9e0;
  --paper: #ffffff; --bar: #3b6ea8; --good: #1a7f37; --warn: #9a6700; --bad: #cf222e; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9198a1; --line: #30363d; --paper: #0d1117; --bar: #5b9bd5;
    --good: #3fb950; --warn: #d29922; --bad: #f85149; } }
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
.screen text { font: 14px ui-monospace, monospace; white-space: pre; }
pre { overflow-x: auto; font-size: 12px; line-height: 1.3; } details { color: var(--soft); }
.heat { border: 1px solid var(--line); } .heat rect { fill: var(--bar); }
.heat text { fill: var(--soft); font-size: 11px; }
.bar { width: 10rem; } .bar span { display: block; height: .7rem; background: var(--bar); }
th:first-child, td:first-child { position: sticky; left: 0; z-index: 1;
  background: var(--paper); }
th button { all: unset; cursor: pointer; } th button:focus-visible { outline: 2px solid; }
th button::after { content: "\\2195"; opacity: .35; padding-left: .3em; }
[aria-sort=descending] button::after { content: "\\2193"; opacity: 1; }
[aria-sort=ascending] button::after { content: "\\2191"; opacity: 1; }
@media (max-width: 40rem) { body { margin: 1rem auto; font-size: 14px; }
  th, td { padding: .2rem .4rem; } dl { grid-template-columns: 1fr; } dd { margin-bottom: .3rem; }
  .names th:first-child, .names td:first-child { min-width: 36vw; max-width: 42vw;
    white-space: normal; overflow-wrap: anywhere; }
  .bar { width: 5rem; } }
@media print { :root { color-scheme: light; } .scroll { overflow: visible; }
  body { margin: 0; max-width: none; font-size: 9pt; }
  th:first-child, td:first-child { position: static; }
  th, td { white-space: normal; overflow-wrap: break-word; padding: .1rem .3rem; }
  th button::after { content: none !important; } tr, figure, .conclusion { break-inside: avoid; }
  h2 { break-after: avoid; } .bar span, rect { print-color-adjust: exact; } }
"""

#: A click on a heading sorts by it: numbers largest first (with their units), then smallest first,
#: then as the report has them. Cells without a number stay last.
_SCRIPT: Final = r"""
const unit = {B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, k: 1e3, M: 1e6, G: 1e9,
  T: 1e12, ns: 1e-9, us: 1e-6, "\u00b5s": 1e-6, ms: 1e-3, s: 1, min: 60};
const value = (shown) => {
  const text = shown.replace(/,/g, "").replace(/\u2212/g, "-");
  const found = text.match(/^\s*[<>~]?\s*([+-]?\d*\.?\d+(?:e[+-]?\d+)?)\s*([^\s\d%]*)/i);
  return found ? Number(found[1]) * (unit[found[2]] ?? 1) : NaN;
};
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], given = [...body.rows];
  if (given.length < 3) continue;
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    if (!head.textContent || given.some((row) => row.cells[column]?.className === "bar")) return;
    const numeric = head.className === "n", button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.onclick = () => {
      const order = numeric ? ["descending", "ascending"] : ["ascending", "descending"];
      const next = order[order.indexOf(head.ariaSort) + 1];
      for (const other of head.parentNode.cells) other.ariaSort = null;
      head.ariaSort = next ?? null;
      const sign = next === "ascending" ? 1 : -1;
      const compared = (a, b) => {
        const [x, y] = [a.cells[column].textContent, b.cells[column].textContent];
        if (!numeric) return sign * x.localeCompare(y, "en", {numeric: true});
        const [u, v] = [value(x), value(y)];
        return isNaN(u) || isNaN(v) ? isNaN(u) - isNaN(v) : sign * (u - v);
      };
      body.append(...(next ? [...given].sort(compared) : given));
    };
  });
}
"""
#: Letters of a name that is long.
_LONG_NAME: Final = 16
#: The page asks for nothing from elsewhere, and runs no script but this one.
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; "
    f"script-src 'sha256-{b64encode(sha256(_SCRIPT.encode()).digest()).decode()}'"
)


def to_html(document: Document) -> str:
    """The report as a whole page, in which everything from a file is escaped."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
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
                twin = (
                    f"<details><summary>As text</summary><pre>{escape(block.text)}</pre></details>"
                )
                twin = twin if block.text else ""
                parts.append(f'<figure class="scroll">{block.svg}{caption}{twin}</figure>')
            else:
                parts.append(f"<p>{escape(block)}</p>")
        parts.append("</section>")
    parts.append(f"<script>{_SCRIPT}</script></body></html>")
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
    # On a phone long names are broken into lines, so that a number stands beside them.
    names = ' class="names"' if any(len(row[0]) > _LONG_NAME for row in table.rows) else ""
    return (
        f'<div class="scroll"><table{names}><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{note}"
    )
