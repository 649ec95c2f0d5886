"""What the Activations view asks of the engine. Raises what QuantizeFeed raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qtui.engine.answers.activations import Captured, CapturesMade, Outputs, Ranges, StageTold
from qtui.engine.requests import CaptureRequest
from qtui.tui.panels.quantize.feed import QuantizeFeed
from qtui.tui.panels.quantize.loading import Activity
from qtui_core.codec import from_plain
from qtui_core.dataclass import dataclass


@dataclass(frozen=True)
class TextChoice:
    """What the model is to read: a prompt, a file, or the built-in text where both are None."""

    prompt: str | None = None
    file: str | None = None


class ActivationsFeed:
    """The part of the panel's feed that is about captured activations.

    `held` are the weights whose modules the engine holds captures of, as it said last.
    """

    def __init__(self, feed: QuantizeFeed) -> None:
        self._feed = feed
        self.held: frozenset[str] = frozenset()

    async def capture(
        self, model: str, tensor: str, text: TextChoice, activity: Activity
    ) -> Captured:
        """Have the module of a weight captured while the model reads a text; one that was
        captured with this text is answered at once."""
        stage = ""

        def heard(fraction: float, data: dict[str, Any]) -> None:
            nonlocal stage
            stage = from_plain(StageTold, data).stage if data else stage
            activity(stage, fraction)

        params = CaptureRequest(model=model, tensors=(tensor,), prompt=text.prompt, file=text.file)
        made = await self._feed.ask(CapturesMade, "capture", params, on_progress=heard)
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
