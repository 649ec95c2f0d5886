"""Chooses the face of a report, and writes it to stdout or a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

from qtui.report.document import Document, printable_document
from qtui_core.errors import UsageError
from qtui_core.files import Target

FORMATS = ("text", "json", "markdown", "html")
_SUFFIXES = {
    ".json": "json", ".md": "markdown", ".html": "html", ".htm": "html", ".txt": "text", "": "text",
}  # fmt: skip


def choose_format(format: str | None, output: str | None) -> str:
    """The format of `--format`, or else of the output file's suffix, or else "text".

    Raises UsageError for an unknown suffix.
    """
    if format or output is None:
        return format or "text"
    suffix = Path(output).suffix.lower()
    if suffix not in _SUFFIXES:
        raise UsageError(
            f"{output!r} ends in {suffix}, which names no format: use .txt, .json, .md or .html, "
            f"or say which with --format."
        )
    return _SUFFIXES[suffix]


def write_report(
    document: Document,
    format: str,
    target: Target | None = None,
    *,
    color: str = "auto",
    ascii: bool = False,
) -> None:
    """Writes a report to stdout, or to the file `target`, which is replaced only by a whole report.

    Raises QtuiError if the file cannot be written.
    """
    if format != "json":  # JSON has escapes for unprintable characters
        document = printable_document(document)
    if target is not None:
        target.write(_render(document, format, ascii))
        return
    if format == "text":
        _write_text(document, sys.stdout, color, ascii or not _writes_unicode())
    else:
        if not _writes_unicode():
            # Markdown and HTML are UTF-8 in any locale.
            sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        sys.stdout.write(_render(document, format, ascii))
    sys.stdout.flush()


def _writes_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32")


def _render(document: Document, format: str, ascii: bool) -> str:
    # A face is imported only when it is used: rich alone takes 20 ms.
    if format == "json":
        from qtui.report.faces.json_face import to_json

        return to_json(document, ascii=ascii)
    if format == "markdown":
        from qtui.report.faces.markdown import to_markdown
        from qtui.report.faces.plain import to_ascii

        return to_ascii(to_markdown(document)) if ascii else to_markdown(document)
    if format == "html":
        from qtui.report.faces.html import to_html

        page = to_html(document)
        return page.encode("ascii", "xmlcharrefreplace").decode() if ascii else page
    import io

    buffer = io.StringIO()
    _write_text(document, buffer, "none", ascii)
    return buffer.getvalue()


def _write_text(document: Document, stream: TextIO, color: str, ascii: bool) -> None:
    from qtui.report.faces.plain import is_plain, to_plain

    if is_plain(stream, color):
        stream.write(to_plain(document, ascii=ascii))
        return
    from qtui.report.faces.text import write_text

    write_text(document, stream, color=color, ascii=ascii)
