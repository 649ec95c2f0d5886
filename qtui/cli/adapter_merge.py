"""`qtui inspect BASE --adapter LORA`: what is left of an adapter that is merged and quantized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from qtui.cli.progress import progress_on_stderr
from qtui_core.errors import QtuiError, UsageError

if TYPE_CHECKING:
    from qtui.report.document import Document
    from qtui_core.inspection.adapters.survival import AdapterReport
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
    text: str | None,
    full: bool,
    all_tensors: bool,
) -> tuple[Document, QtuiError | KeyboardInterrupt | None]:
    """Merges, quantizes and measures; with a text, also runs the models. With the report comes what
    ended that run before its end, if anything did.

    Raises what opening, reading and merging raise.
    """
    from qtui.report.inspection.adapters import adapter_document
    from qtui_core.inspection.adapters.merging import merge_adapter
    from qtui_core.inspection.adapters.reading import read_adapter
    from qtui_core.inspection.adapters.survival import survey
    from qtui_core.models import open_model
    from qtui_core.models.opening import open_adapter

    with open_model(model) as base:
        base.require_weights()
        found = open_adapter(adapter)
        with found.weights:
            merge = merge_adapter(base, read_adapter(found))
            with progress_on_stderr("merging") as job:
                report = survey(merge, schemes, trained_on, full=full, job=job)
        ended = None
        if text is not None and report.weights:
            report, ended = _with_divergence(report, model, adapter, schemes, trained_on, text)
        return adapter_document(report, all_tensors=all_tensors), ended


def _with_divergence(
    report: AdapterReport,
    model: str,
    adapter: str,
    schemes: Sequence[Scheme],
    trained_on: Scheme | None,
    text: str,
) -> tuple[AdapterReport, QtuiError | KeyboardInterrupt | None]:
    from qtui.cli.evaluation_run import run_to_end
    from qtui_core.evaluation.merged import merged_divergence
    from qtui_core.evaluation.settings import EvaluationSettings
    from qtui_core.inspection.adapters.survival import conclude_adapter

    settings = EvaluationSettings(
        tuple(schemes), adapter=adapter, trained_on=trained_on, text=text
    ).settled()
    ended: QtuiError | KeyboardInterrupt | None = None
    why = "it was interrupted"
    try:
        outcome = run_to_end(model, settings, None)
    except KeyboardInterrupt as interrupt:
        ended = interrupt
    except QtuiError as error:
        ended, why = error, str(error).removesuffix(".")
    else:
        if outcome.interrupted:
            ended = outcome.interrupted
        elif outcome.failed:
            why = "its process ended early"
            ended = QtuiError("The models were not all run on the text: try again.")
        found = merged_divergence(outcome.found.begun, outcome.parts)
        if found is not None:
            report = replace(report, divergence=found)
            early = "" if ended is None else "The text was not read to its end. "
            return replace(report, conclusion=early + conclude_adapter(report)), ended
    said = conclude_adapter(report, f"What the model loses on the text is unknown ({why}).")
    return replace(report, conclusion=said), ended


def check_text(text: str | None) -> None:
    """Raises UsageError for a text that cannot be read, or without the libraries that run it."""
    if text is not None:
        from qtui_core.extras import require
        from qtui_core.loading.text import read_text

        require("--text", "torch", "transformers")
        read_text(text, "an evaluation")
