"""`qtui inspect BASE --adapter LORA`: what is left of an adapter that is merged and quantized."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qtui.cli.progress import progress_on_stderr
from qtui_core.errors import UsageError

if TYPE_CHECKING:
    from qtui.report.document import Document
    from qtui_core.schemes.scheme import Scheme

DEFAULT_MERGES = "nf4:dq,int4,int8"


def merge_schemes(merge: str | None, trained_on: str | None) -> tuple[list[Scheme], Scheme | None]:
    """The schemes of `--merge`, without duplicates, and that of `--trained-on`. Raises UsageError
    for a text that is no scheme."""
    from qtui_core.schemes.scheme import Scheme

    texts = [t.strip() for t in (merge or DEFAULT_MERGES).split(",") if t.strip()]
    if not texts:
        raise UsageError("--merge is empty: name at least one scheme, for example nf4:dq,int4.")
    schemes = list(dict.fromkeys(Scheme.parse(text) for text in texts))
    return schemes, None if trained_on is None else Scheme.parse(trained_on.strip())


def report_adapter(
    model: str,
    adapter: str,
    schemes: list[Scheme],
    trained_on: Scheme | None,
    *,
    full: bool,
    all_tensors: bool,
) -> Document:
    """Merges, quantizes and measures. Raises what opening, reading and merging raise."""
    from qtui.report.inspection.adapters import adapter_document
    from qtui_core.inspection.adapters.merging import merge_adapter
    from qtui_core.inspection.adapters.reading import read_adapter
    from qtui_core.inspection.adapters.survival import survey
    from qtui_core.models import open_model
    from qtui_core.models.opening_adapter import open_adapter

    with open_model(model) as base:
        base.require_weights()
        found = open_adapter(adapter)
        with found.weights:
            merge = merge_adapter(base, read_adapter(found))
            with progress_on_stderr("merging") as progress:
                report = survey(merge, schemes, trained_on, full=full, progress=progress)
        return adapter_document(report, all_tensors=all_tensors)
