"""The model and the windows by which its tensors are weighed. Needs torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from qtui_core.answers.tensors import PredictionErrors
from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError, UsageError
from qtui_core.evaluation.settings import LEAST_WINDOW, EvaluationSettings
from qtui_core.evaluation.streamed import StreamedModel
from qtui_core.evaluation.windows import TextWindows, cut_windows
from qtui_core.loading.text import Text
from qtui_core.loading.tokens import Tokenizer, positions_of
from qtui_core.models import ModelSource
from qtui_core.models.quoting import listed, quoted
from qtui_core.quantities import plural
from qtui_core.schemes.scheme import Scheme

#: Nats a token of each scheme on each window, float64 `[schemes, windows]`.
Nats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class WeighedModel:
    """A model, the tensors and schemes to weigh, and the windows that it reads."""

    source: ModelSource
    model: StreamedModel
    tensors: tuple[str, ...]
    schemes: tuple[Scheme, ...]
    windows: TextWindows
    text: str

    def refuse_unused(self, used: Mapping[str, object] | set[str]) -> None:
        """Raises ModelError if there are tensors that the running model does not use as they
        are."""
        if lost := [name for name in self.tensors if name not in used]:
            raise ModelError(
                f"The model that runs does not use {listed(lost)} of {quoted(self.source.id)} as "
                f"stored, so what they do to its predictions is unknown: choose --objective "
                f"weights, or other --tensors."
            )

    def result(self, by: Literal["fisher", "kl"], nats: dict[str, Nats]) -> PredictionErrors:
        """The answer. What is not finite counts as the logarithm of the vocabulary, which a model
        that knows nothing is away from one that is certain."""
        most = math.log(self.model.loaded.vocabulary)
        rows = {name: np.where(np.isfinite(nats[name]), nats[name], most) for name in self.tensors}
        return PredictionErrors(
            by=by,
            text=self.text,
            window=self.windows.ids.shape[1],
            scored=self.windows.scored,
            windows=len(self.windows.ids),
            nats={name: tuple(map(tuple, values.tolist())) for name, values in rows.items()},
        )


def weighed_model(
    source: ModelSource,
    tensors: Sequence[str],
    schemes: Sequence[Scheme],
    text: Text,
    windows: int,
) -> WeighedModel:
    """The model and `windows` windows of the first half of the text, spread over it.

    Raises:
        UsageError: the text is too short.
        ModelError: the model cannot be run here, or lacks one of the tensors.
    """
    model = StreamedModel(source, "cpu")
    tokenizer = Tokenizer(model.loaded)
    ids = tokenizer.encode(text.content)
    if ids.size < 2 * LEAST_WINDOW:
        raise UsageError(
            f"The text has {plural(ids.size, 'token')}, of which the first half chooses schemes: "
            f"it takes {2 * LEAST_WINDOW} at least, and a few thousand choose well."
        )
    settings = EvaluationSettings(windows=windows)
    limit = positions_of(model.loaded.model)
    cut = cut_windows(ids[: ids.size // 2], tokenizer, settings, limit, source.parameters)
    subject = WeighedModel(source, model, tuple(tensors), tuple(schemes), cut, text.origin)
    subject.refuse_unused({weight.info.name for weight in model.weights})
    return subject
