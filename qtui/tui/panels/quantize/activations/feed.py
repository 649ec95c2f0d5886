"""The requests of the Activations view to the engine. They raise what QuantizeFeed raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qtui.engine.answers.activations import (
    Captured,
    CapturedModules,
    Outputs,
    Ranges,
    StageProgress,
)
from qtui.engine.requests import CaptureRequest
from qtui.tui.panels.quantize.feed import QuantizeFeed
from qtui.tui.panels.quantize.tensor_reader import Activity
from qtui_core.codec import from_plain
from qtui_core.dataclass import dataclass


@dataclass(frozen=True)
class TextChoice:
    """The text that the model reads: a prompt, a file, or the built-in text if both are None."""

    prompt: str | None = None
    file: str | None = None


class ActivationsFeed:
    """The requests of the panel that are about captured activations.

    `held` has the weights whose modules are captured in the engine, as of its last answer.
    """

    def __init__(self, feed: QuantizeFeed) -> None:
        self._feed = feed
        self.held: frozenset[str] = frozenset()

    async def capture(
        self, model: str, tensor: str, text: TextChoice, activity: Activity
    ) -> Captured:
        """Captures the module of a weight while the model reads a text. If it was already captured
        with this text, the answer comes at once."""
        stage = ""

        def heard(fraction: float, data: dict[str, Any]) -> None:
            nonlocal stage
            stage = from_plain(StageProgress, data).stage if data else stage
            activity(stage, fraction)

        params = CaptureRequest(model=model, tensors=(tensor,), prompt=text.prompt, file=text.file)
        made = await self._feed.ask(CapturedModules, "capture", params, on_progress=heard)
        self.held, found = frozenset(made.held), made.captures[0]
        self._feed.forget_other_captures(tensor, found.number)
        return found

    async def ranges(
        self, model: str, found: Captured, side: str, scheme: str, activity: Activity
    ) -> Ranges:
        params = {"model": model, "tensor": found.tensor, "source": side, "scheme": scheme}
        key = ("ranges", model, found.number, side, scheme)
        heard = _heard(activity, f"ranges of {scheme}")
        return await self._feed.ask(Ranges, "activation_ranges", params, key=key, on_progress=heard)

    async def outputs(
        self, model: str, found: Captured, schemes: tuple[str, ...], active: int, activity: Activity
    ) -> Outputs:
        params = {"model": model, "tensor": found.tensor, "schemes": schemes, "active": active}
        key = ("outputs", model, found.number, schemes, active)
        heard = _heard(activity, "error of the output")
        return await self._feed.ask(Outputs, "output_error", params, key=key, on_progress=heard)


def _heard(activity: Activity, label: str) -> Callable[[float, object], None]:
    return lambda fraction, _: activity(label, fraction)
