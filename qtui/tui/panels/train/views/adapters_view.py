"""The Adapters view: how the adapters change the next token."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qtui.report.numbers import format_value
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, headings, paragraphs, right
from qtui.tui.panels.train.shown import RunShown
from qtui.tui.panels.train.view import TrainView
from qtui_core.live.snapshot import AdaptersCompared


class AdaptersView(TrainView):
    """The likeliest next tokens with adapters on beside those with them off."""

    TITLE = "Adapters"
    HELP = """\
**Adapters**: the likeliest next tokens with adapters on and off, from one copy of the base.
"""

    def draw(self, shown: RunShown, canvas: Canvas) -> Sequence[TextLine]:
        """The likeliest next tokens with adapters on beside those with them off."""
        state = shown.state
        compared = state.adapters
        if compared is None:
            why = (
                "Adapters are compared after the last step of a LoRA or QLoRA run; I sets the text."
            )
            return self.nothing(shown, why, canvas)
        half = max(24, min(44, canvas.width // 2))
        lines: list[TextLine] = [headings((0, "adapters on"), (half, "adapters off"))]
        best = max([p for _, p in (*compared.on, *compared.off)], default=1.0) or 1.0
        for at in range(max(len(compared.on), len(compared.off))):
            line: list[Put] = []
            for start, side in ((0, compared.on), (half, compared.off)):
                if at < len(side):
                    token, probability = side[at]
                    text = shortened(repr(token), 12, canvas.glyphs.ellipsis)
                    share = probability / best
                    cells = round((half - 22) * share) if 0 <= share <= 1 else 0
                    line += [
                        Put(start, text, "value"),
                        right(start + 19, f"{probability:.1%}", "value"),
                        Put(start + 20, canvas.glyphs.full * cells, "bar"),
                    ]
            lines.append(line)
        lines += [[], *paragraphs(_adapter_words(compared), canvas.width)]
        return lines[: canvas.height]

    def meaning(self, shown: RunShown) -> str:
        compared = shown.state.adapters
        return super().meaning(shown) if compared is None else of_adapters(compared)


def _adapter_words(compared: AdaptersCompared) -> list[str]:
    words = [f"largest difference of a logit: {format_value(compared.largest_difference)}"]
    base = compared.reference_difference
    if base is not None:
        same = "the base is untouched" if base == 0 else "the base has changed"
        words.append(
            f"adapters off against the base before they were added: {format_value(base)}, so {same}"
        )
    return words


def of_adapters(compared: AdaptersCompared) -> str:
    """The sentence about how the adapters change the next token, and whether the base is
    unchanged."""
    base = compared.reference_difference
    if not math.isfinite(compared.largest_difference + (base or 0.0)):
        return "Some logits are no finite numbers, so adapters on and off cannot be compared."
    if compared.largest_difference == 0 and compared.step:
        return (
            f"After step {compared.step:,} the adapters change no logit of this text: their "
            f"updates are zero, or lost by rounding; ranges of the gradients say which."
        )
    if compared.largest_difference == 0:
        return (
            "The adapters change nothing yet: they begin at zero, and were compared before a step "
            "trained them. They are compared again after the last step."
        )
    by = format_value(compared.largest_difference)
    text = f"The adapters change a logit by up to {by}"
    if compared.on and compared.off:
        (new, _), (old, _) = compared.on[0], compared.off[0]
        text += (
            f", and {old!r} stays the likeliest token."
            if new == old
            else f", and make {new!r} the likeliest token in place of {old!r}."
        )
    else:
        text += "."
    if base is None:
        return text
    if base == 0:
        return f"{text} The base is untouched: without them its logits are those from before."
    return (
        f"{text} Without them logits differ from the base by {format_value(base)}, so something "
        "besides the adapters was trained."
    )
