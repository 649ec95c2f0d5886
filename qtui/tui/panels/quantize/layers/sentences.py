"""The sentence of the Layers view: which tensor hurts most, and by how much."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median

from qtui.report.inspection.layers import place_of
from qtui.report.numbers import format_decibels
from qtui.screen.tensors.list import sqnr_key
from qtui.tui.panels.quantize.layers.grid import finite
from qtui_core.models.quoting import printable
from qtui_core.quantities import plural


def layers_sentence(
    model: str,
    scheme: str,
    count: int,
    sqnr_db: Mapping[str, float | None],
    *,
    running: bool,
    sampled: bool,
) -> str:
    """What is known of `count` tensors of a model, of which those in `sqnr_db` were read."""
    if not count:
        return f"No tensor of {printable(model)} can be quantized: there is nothing to read here."
    read = len(sqnr_db)
    if not read:
        if running:
            return f"Reading {plural(count, 'tensor')} under {scheme}: none is done yet."
        return f"None of {plural(count, 'tensor')} is read under {scheme} yet: r reads them."
    of = f"{read:,} of {plural(count, 'tensor')} read"
    part = ""
    if read < count:
        part = f" So far {of}." if running else f" Only {of}: r reads them all."
    elif sampled:
        part = " Large tensors were read in samples of their rows."
    return f"{_worst(scheme, sqnr_db)}{part}"


def _worst(scheme: str, sqnr_db: Mapping[str, float | None]) -> str:
    lost = [name for name, value in sqnr_db.items() if value == -math.inf]
    if lost:
        first = title_of(lost[0])
        if len(lost) == 1:
            return f"{first} loses values under {scheme}: they become infinite or NaN."
        return (
            f"{len(lost):,} tensors lose values under {scheme}, {first} first: they become "
            f"infinite or NaN."
        )
    known = finite(sqnr_db)
    if not known:
        without = sum(value is not None for value in sqnr_db.values())
        if without == len(sqnr_db):
            return "No tensor that was read has a finite value: there is nothing to round."
        but = f" but {plural(without, 'tensor')} without a finite value" if without else ""
        return f"{scheme} keeps every tensor that was read exactly{but}."
    worst = min(sqnr_db, key=lambda name: sqnr_key(sqnr_db[name]))
    least, middle = known[0], median(known)
    shown = f"{format_decibels(least)} dB"
    if len(known) == 1:
        exact = len(sqnr_db) > 1
        but = ", the only one with an error" if exact else ""
        return f"{title_of(worst)} has {shown} under {scheme}{but}."
    if middle - least < 0.05:
        return f"No tensor stands out under {scheme}: the worst has {shown}, as half of them do."
    return (
        f"{title_of(worst)} hurts most under {scheme}: {shown}, {middle - least:.1f} dB below the "
        f"median of {format_decibels(middle)}{_kind(sqnr_db)}. Enter shows its maps."
    )


def _kind(sqnr_db: Mapping[str, float | None]) -> str:
    """The kind of module that is worst in most layers, if there are several of both."""
    layers: dict[tuple[str, int], list[str]] = {}
    for name in sqnr_db:
        if place := place_of(name):
            layers.setdefault(place[:2], []).append(name)
    compared = [names for names in layers.values() if len(names) > 1]
    if len(compared) < 2:
        return ""
    worst: dict[str, int] = {}
    for names in compared:
        place = place_of(min(names, key=lambda name: sqnr_key(sqnr_db[name])))
        assert place is not None
        worst[place[2]] = worst.get(place[2], 0) + 1
    kind = max(worst, key=lambda each: worst[each])
    many = len(compared)
    of = "every one" if worst[kind] == many else f"{worst[kind]:,}"
    return f"; {printable(kind)} is the worst in {of} of {many:,} layers"


def title_of(name: str) -> str:
    """A tensor by its layer and module: "mlp.down_proj of layer 3"."""
    place = place_of(name)
    if place is None:
        return printable(name.removesuffix(".weight"))
    _, layer, _ = place
    rest = name.split(f".{layer}.", 1)[1].removesuffix(".weight")
    return f"{printable(rest)} of layer {layer}"
