"""The Activations view as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from qtui.engine.answers.activations import Captured, Channel, Outputs, Ranges, Way
from qtui.report.numbers import format_decibels, format_value
from qtui.report.pictures.glyphs import Glyphs
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Tone, Toned, TonedLine, wrapped
from qtui_core.models.quoting import printable

LABEL = 23
NUMBERS = 42
SHORTEST_BAR = 8
CHANNEL_BARS = 8
NONE = "–"


def all_lines(
    width: int,
    height: int,
    glyphs: Glyphs,
    found: Captured,
    ranges: Ranges | None,
    outputs: Outputs | None,
    letters: str = "AB",
) -> Sequence[TonedLine]:
    """All lines of the view. If there is room, blank lines separate the parts; if there is more
    room, the channels are bars."""
    parts: list[list[TonedLine]] = [[_text_line(width, glyphs, found, ranges)]]
    if ranges is not None:
        parts.append(_way_lines(width, glyphs, ranges))
        parts.append([_channel_line(width, glyphs, ranges)])
    if outputs is not None:
        parts.append(_output_lines(width, glyphs, outputs, letters))
    room = height - sum(map(len, parts)) - (len(parts) - 1)
    if ranges is not None and room > 3 and ranges.channels:
        bars = _channel_bars(width, glyphs, ranges, min(CHANNEL_BARS, room - 1))
        parts[2] = bars or parts[2]
        room -= len(bars)
    if outputs is not None and room > 1:
        parts[-1].append(_share_line(width, outputs))
    if room < 0:
        # Without blank lines; the headings separate the parts.
        return [line for part in parts for line in part][:height]
    lines: list[TonedLine] = []
    for part in parts:
        lines += [[], *part] if lines else part
    return lines


def _text_line(width: int, glyphs: Glyphs, found: Captured, ranges: Ranges | None) -> TonedLine:
    kept = ""
    if ranges is not None and ranges.sampled:
        kept = f" ({found.kept_tokens:,} of them measured)"
    held = f", {found.held_out_tokens:,} held out" if found.held_out_tokens else ", none held out"
    words = f"{found.tokens:,} tokens{kept}{held}; {printable(found.text)}."
    return [(shortened(words, width, glyphs.ellipsis), "label")]


def _way_lines(width: int, glyphs: Glyphs, ranges: Ranges) -> list[TonedLine]:
    title = f"{ranges.scheme.split(':')[0]} for the {ranges.side}"
    heads = f"{'bits':>7}{'calibrated':>12}{'unseen':>8}{'lost':>6}{'clipped':>9}"
    bar = width - LABEL - NUMBERS - 1
    lines: list[TonedLine] = [
        [
            (f"{shortened(title, LABEL, glyphs.ellipsis):<{LABEL}}", "title"),
            (heads, "label"),
            ("  SQNR in dB" if bar >= 12 else "", "label"),
        ]
    ]
    best = max(ranges.ways, key=_kept)
    largest = max((_kept(way) for way in ranges.ways if _kept(way) < float("inf")), default=0.0)
    for way in ranges.ways:
        text = _way_line(way, glyphs, best is way)
        if bar >= SHORTEST_BAR and largest > 0:
            cells = round(min(1.0, max(0.0, _kept(way) / largest)) * bar)
            text.append((" " + glyphs.full * cells, "bar"))
        lines.append(text)
    return lines


def _way_line(way: Way, glyphs: Glyphs, best: bool) -> list[Toned]:
    clipped = f"{100 * way.last.clipped:.2f}%" if way.kind == "static" or way.last.clipped else NONE
    loss = NONE if way.loss_db is None else f"{way.loss_db + 0.0:.1f}"
    marker = glyphs.pointer if best else " "
    held = _decibels(way.held_out.sqnr_db) if way.held_out else NONE
    name = f"{marker}{way.kind:<8}{way.words}"
    return [
        (f"{name:<{LABEL}}", "strong" if best else "value"),
        (f"{way.bits:>7.2f}{_decibels(way.calibration.sqnr_db):>12}", "value"),
        (f"{held:>8}", "strong" if best else "value"),
        (f"{loss:>6}", "expected" if way.loss_db is not None and way.loss_db >= 1 else "value"),
        (f"{clipped:>9}", "value"),
    ]


def _channel_line(width: int, glyphs: Glyphs, ranges: Ranges) -> TonedLine:
    """The largest channels on one line, as many as fit."""
    start = "largest channels"
    text: list[Toned] = [(f"{start:<{LABEL}}", "title")]
    room = width - LABEL
    for place, channel in enumerate(ranges.channels):
        words = f"{channel.channel:,}: {_ratio(channel)}   "
        if len(words.rstrip()) > room:
            break
        text.append((words, "warning" if place < ranges.standing_out else "value"))
        room -= len(words)
    return text


def _channel_bars(width: int, glyphs: Glyphs, ranges: Ranges, count: int) -> list[TonedLine]:
    """A bar for each of the largest channels, up to its largest magnitude; a tick marks the median
    channel."""
    channels = ranges.channels[:count]
    largest = channels[0].absmax
    room = width - LABEL - 22
    if room < SHORTEST_BAR or largest <= 0:
        return []
    heads = f"{'largest':>8}{'ratio':>8}"
    legend = f"  {glyphs.vertical} the median channel"
    lines: list[TonedLine] = [
        [(f"{'largest channels':<{LABEL}}", "title"), (heads, "label"), (legend, "quiet")]
    ]
    for place, channel in enumerate(channels):
        name: Tone = "warning" if place < ranges.standing_out else "value"
        cells = max(1, round(channel.absmax / largest * room))
        text: list[Toned] = [
            (f" {f'channel {channel.channel:,}':<{LABEL - 1}}", name),
            (f"{format_value(channel.absmax, 3):>8}{_ratio(channel):>8}  ", "value"),
        ]
        tick = -1
        if channel.ratio:
            tick = round(room * channel.absmax / largest / channel.ratio) - 1
        if not 0 <= tick < cells:
            text.append((glyphs.full * cells, "bar"))
        else:
            text += [
                (glyphs.full * tick, "bar"),
                (glyphs.vertical, "quiet"),
                (glyphs.full * (cells - tick - 1), "bar"),
            ]
        lines.append(text)
    return lines


def _output_lines(width: int, glyphs: Glyphs, outputs: Outputs, letters: str) -> list[TonedLine]:
    names = [f"{letter} {text}" for letter, text in zip(letters, outputs.schemes, strict=False)]
    longest = max(map(len, names), default=0)
    label = min(max(LABEL, longest + 5), width // 2)
    column = min(max(13, longest + 2), max(8, (width - label) // (1 + len(names))))
    heads = ["as stored", *names]
    title = "SQNR of the output, dB"
    lines: list[TonedLine] = [
        [
            (f"{shortened(title, label, glyphs.ellipsis):<{label}}", "title"),
            ("input as is".rjust(column), "label"),
            *((shortened(n, column - 1, glyphs.ellipsis).rjust(column), "label") for n in names),
        ]
    ]
    for row, (name, values) in enumerate(zip(heads, outputs.sqnr_db, strict=True)):
        text: list[Toned] = [
            (f"{shortened(f' W {name}', label - 1, glyphs.ellipsis):<{label}}", "value")
        ]
        for at, value in enumerate(values):
            tone: Tone = "label" if row == 0 and at == 0 else "value"
            text.append((_decibels(value).rjust(column), tone))
        lines.append(text)
    return lines


def _share_line(width: int, outputs: Outputs) -> TonedLine:
    """The output channels with the largest share of the error, as many as fit."""
    words = "  largest shares of the error, by output: "
    for place, (channel, share) in enumerate(outputs.worst_outputs):
        more = f"{', ' if place else ''}{channel:,} ({100 * share:.3g}%)"
        if len(words) + len(more) > width:
            break
        words += more
    return [(words if outputs.worst_outputs else "", "label")]


def _decibels(sqnr_db: float | None) -> str:
    return "exact" if sqnr_db is None else format_decibels(sqnr_db)


def _kept(way: Way) -> float:
    return float("inf") if way.last.sqnr_db is None else way.last.sqnr_db


def _ratio(channel: Channel) -> str:
    return "–" if channel.ratio is None else f"{channel.ratio:.3g}x"


def wrapped_lines(width: int, sentences: Sequence[str]) -> list[TonedLine]:
    """Paragraphs wrapped to a width, with a blank line after each."""
    lines: list[TonedLine] = []
    for sentence in sentences:
        for line in wrapped(sentence, width):
            lines.append([(line, "value")])
        lines.append([])
    return lines
