"""Runs the original and each candidate on a text, and reports the scores of every token. Needs
torch.

Windows go through a model in batches. A part is one batch for one candidate; parts of a recording
need not be computed again. Batches are large, because each reads and quantizes the weights again.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from qtui_core.errors import ModelError
from qtui_core.evaluation.changes import (
    OtherCheckpoint,
    WeightChange,
    assigned,
    read_assignment,
    uniform,
)
from qtui_core.evaluation.figures import TOKEN_SCORES
from qtui_core.evaluation.merged import adapted
from qtui_core.evaluation.results import Candidate, EvaluatedText, EvaluationBegun, PartScored
from qtui_core.evaluation.scores import score
from qtui_core.evaluation.settings import ORIGINAL, EvaluationSettings
from qtui_core.evaluation.streamed import ForwardPass, StreamedModel
from qtui_core.evaluation.windows import TextWindows, cut_windows
from qtui_core.extras import installed_version
from qtui_core.job import IDLE, Job
from qtui_core.loading.text import HELD_BACK_PROSE, MAX_BYTES, Text, builtin_text, read_text
from qtui_core.loading.tokens import Tokenizer, positions_of
from qtui_core.models import ModelSource, open_model
from qtui_core.models.quoting import listed, quoted
from qtui_core.quantities import plural
from qtui_core.schemes.scheme import Scheme
from qtui_core.training.run.placement import NoGpu

#: The most tokens of a batch: with so many, reading and rounding a weight takes a tenth of the time
#: of its product on a CPU. And the most bytes of the logits of a batch, of which there are two
#: copies.
BATCH_TOKENS = 4096
LOGIT_BYTES = 1 << 30
_LIBRARIES = ("torch", "transformers")

#: Of each candidate: the change of its weights, and the scheme of the inputs of its linear layers.
Ways = Sequence[tuple[WeightChange, Scheme | None]]


def evaluate(
    source: ModelSource,
    settings: EvaluationSettings,
    tell: Callable[[EvaluationBegun | PartScored], None],
    *,
    done: Collection[tuple[int, int]] = (),
    job: Job = IDLE,
) -> None:
    """Passes an EvaluationBegun to `tell`, then a PartScored for every part, batch by batch. Parts
    in `done`, as (number of the batch, number of the candidate), are left out; `tell` may add parts
    to it.

    Raises:
        Cancelled: the job was cancelled, which is looked at before each layer.
        NoGpu: `settings.device` is "cuda", and there is none.
        UsageError: the text is too short, or a scheme, assignment or checkpoint does not fit.
        ModelError: the model cannot be run here, has no head for the next token, or its logits are
            not finite.
    """
    settings = settings.settled()
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise NoGpu("There is no GPU to run on: PyTorch finds none. Use --device cpu.")
    with ExitStack() as stack:
        job.at(0.0, words="opening the model")
        begun, model, cut, ways = _prepare(source, settings, stack)
        tell(begun)
        count, units, last = len(ways), model.units, 0
        for batch, size in enumerate(begun.batches):
            windows, last = cut.ids[last : last + size], last + size
            missing = [c for c in range(count) if (batch, c) not in done]
            original: torch.Tensor | None = None
            for number in sorted({0, *missing}) if missing else ():
                words = (
                    f"{begun.candidates[number].name}, batch {batch + 1} of {len(begun.batches)}"
                )
                total, taken = begun.parts * units, (batch * count + number) * units

                def step(words: str = words, total: int = total) -> None:
                    nonlocal taken
                    job.at(min(total, taken), total, words)
                    taken += 1

                began, (change, inputs), scored = time.perf_counter(), ways[number], cut.scored
                how = ForwardPass(change, inputs, step)
                logits = model.logits(windows, scored, how)
                if original is None:
                    model.refuse_broken(logits)
                targets = torch.from_numpy(windows[:, -scored:]).to(logits.device)
                with torch.inference_mode():
                    scores = score(logits, original, targets)
                original = logits if original is None else original
                if number in missing:
                    seconds = time.perf_counter() - began
                    texts = {
                        name: b64encode(scores[name].tobytes()).decode()
                        for name, row in TOKEN_SCORES.items()
                        if number or row.of_original
                    }
                    tell(PartScored(batch, number, change.nbytes(), seconds=seconds, **texts))


def _prepare(
    source: ModelSource, settings: EvaluationSettings, stack: ExitStack
) -> tuple[EvaluationBegun, StreamedModel, TextWindows, Ways]:
    # Settings are checked before the model is read, which takes longer.
    text = _text_of(source, settings)
    chosen = {path: read_assignment(path) for path in settings.assignment}
    source.require_weights()
    merged = [] if settings.adapter is None else adapted(source, settings, stack)
    changes: list[WeightChange] = [*merged] or [WeightChange(ORIGINAL, source)]
    if not merged:
        changes += [uniform(scheme, source, settings.keep) for scheme in settings.schemes]
    notes: list[str] = []
    # Named by their files, whose names are often the same in different folders.
    short = {Path(path).name for path in chosen}
    for path, schemes in chosen.items():
        name = Path(path).name if len(short) == len(chosen) else path
        changes.append(assigned(name, schemes, source))
    changes += [assigned(given.name, given.schemes, source) for given in settings.given]
    if settings.against is not None:
        other = stack.enter_context(open_model(settings.against))
        other.require_weights()
        against = OtherCheckpoint(source, other)
        changes.append(against)
        notes += against.notes
        if against.missing:
            notes.append(
                f"{quoted(other.id)} lacks {listed(list(against.missing))}: those of "
                f"{quoted(source.id)} are used."
            )
    model = StreamedModel(source, settings.device)
    notes += _note_on_parts(model, changes)
    if text.partial:
        notes.append(f"Only the first {MAX_BYTES >> 20} MiB of {quoted(text.origin)} are used.")
    tokenizer = Tokenizer(model.loaded)
    ids = tokenizer.encode(text.content)
    if settings.second_half:
        ids = ids[ids.size // 2 :]
    limit = positions_of(model.loaded.model)
    windows = cut_windows(ids, tokenizer, settings, limit, source.parameters)
    count, length = windows.ids.shape
    by_logits = LOGIT_BYTES // (4 * windows.scored * model.loaded.vocabulary)
    size = max(1, min(BATCH_TOKENS // length, by_logits))
    ways = [
        (change, scheme)
        for number, change in enumerate(changes)
        for scheme in (None, *(settings.activations if number else ()))
    ]
    device = f"CPU, {plural(torch.get_num_threads(), 'thread')}"
    if settings.device == "cuda":
        device = torch.cuda.get_device_name(0)
    origin = text.origin, tokenizer.words, windows.available, windows.digest
    begun = EvaluationBegun(
        model=source.id,
        architecture=source.architecture or "",
        parameters=source.parameters,
        nbytes=source.nbytes,
        settings=settings,
        text=EvaluatedText(*origin, length, windows.scored, count),
        candidates=tuple(Candidate(c.name, None if a is None else str(a)) for c, a in ways),
        batches=tuple(min(size, count - start) for start in range(0, count, size)),
        device=f"{device}, float32",
        notes=tuple(notes),
        versions={name: installed_version(name) or "" for name in _LIBRARIES},
    )
    return begun, model, windows, ways


def _note_on_parts(model: StreamedModel, changes: Sequence[WeightChange]) -> list[str]:
    """A note on weights that are put together of several tensors. Raises ModelError if one of these
    tensors is to be changed alone."""
    if not model.unnamed:
        return []
    whole = {weight.info.name for weight in model.weights} - set(model.unnamed)
    if lost := dict.fromkeys(n for change in changes for n in change.alone if n not in whole):
        raise ModelError(
            f"The model that runs does not have {listed(list(lost))} as tensors of their own, so "
            f"neither an assignment nor an adapter can be given to it: only --schemes."
        )
    return [
        f"transformers puts {listed(list(model.unnamed))} together from tensors of the checkpoint: "
        f"schemes are applied to the whole, which stays in memory."
    ]


def _text_of(source: ModelSource, settings: EvaluationSettings) -> Text:
    """The text of the file. Without one, for the demo a text that it was not trained on, for other
    models prose."""
    if settings.text is not None:
        return read_text(settings.text, "an evaluation")
    if source.origin == "demo":
        return builtin_text()
    prose = HELD_BACK_PROSE.read_text(encoding="utf-8")
    return Text(prose, "prose inside qtui (Python's documentation)")
