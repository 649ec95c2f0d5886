"""Chooses the face of a report and where it goes."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from qtui.report.document import Document
from qtui_core.errors import QtuiError

FORMATS = ("text", "json", "markdown", "html")
_SUFFIXES = {".json": "json", ".md": "markdown", ".html": "html", ".htm": "html"}


def choose_format(format: str | None, output: str | None) -> str:
    """What was asked for, else what the suffix of the output file says, else text."""
    if format:
        return format
    return _SUFFIXES.get(Path(output).suffix.lower(), "text") if output else "text"


def write_report(
    document: Document,
    format: str,
    output: str | None = None,
    *,
    color: str = "auto",
    ascii: bool = False,
) -> None:
    """To stdout, or to the file `output` as a whole or not at all.

    Raises QtuiError when the file cannot be written.
    """
    if output is not None:
        _write_whole(Path(output), _render(document, format, ascii))
        return
    if format == "text":
        from qtui.report.text import write_text

        write_text(document, sys.stdout, color=color, ascii=ascii or not _writes_unicode())
    else:
        if not _writes_unicode():
            # The other faces are data and UTF-8 by definition, whatever the locale.
            sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        sys.stdout.write(_render(document, format, ascii))
    sys.stdout.flush()


def _writes_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32")


def _render(document: Document, format: str, ascii: bool) -> str:
    # Each face is imported when it is asked for: rich alone costs 20 ms.
    if format == "json":
        from qtui.report.json_face import to_json

        return to_json(document, ascii=ascii)
    if format == "markdown":
        from qtui.report.markdown import to_markdown

        return to_markdown(document)
    if format == "html":
        from qtui.report.html import to_html

        return to_html(document)
    import io

    from qtui.report.text import write_text

    buffer = io.StringIO()
    write_text(document, buffer, color="none", ascii=ascii)
    return buffer.getvalue()


def _write_whole(path: Path, text: str) -> None:
    """Writes beside the target and renames, so that a report is there whole or not at all."""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise QtuiError(f"Cannot write {path}: {error.strerror or error}.") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise QtuiError(f"Cannot write {path}: {error.strerror or error}.") from error
        raise
