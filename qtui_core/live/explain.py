"""The sentence on a difference: its largest part without a known cause, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from qtui_core.live.components import REST
from qtui_core.live.gap import CONTEXT, MOMENTS, OTHERS, PAGED, SLACK, GapPart, Level
from qtui_core.quantities import format_bytes

#: A part below this share of its level's estimate is too small to mention.
WORTH: Final = 0.005

_CALIBRATE: Final = "`qtui calibrate` measures it on this machine, and the estimate then uses that."
_OTHER_MODEL: Final = (
    "What stands still follows from config.json and the plan: compare --quant, --kbit-prep, "
    "--lora-targets and the types with what ran."
)
#: What to do about each part.
_DO: Final = {
    "weights": _OTHER_MODEL,
    "quantization constants": _OTHER_MODEL,
    "adapters": _OTHER_MODEL,
    "buffers": _OTHER_MODEL,
    "inputs": "The batch that ran is not the one of the plan: compare --batch and --seq.",
    "gradients": "Look for parameters that train and should not, and at --accumulation.",
    "optimizer states": "The optimizer that ran keeps other states than the plan's --optimizer.",
    "cuBLAS workspaces": _CALIBRATE,
    CONTEXT: _CALIBRATE,
    SLACK: (
        "The allocator keeps it in pieces: --segments expandable makes it smaller, and "
        "`qtui calibrate` learns its settings."
    ),
    PAGED: "The driver decides how much of them stays on the GPU.",
    MOMENTS: "The levels peaked at different moments; a longer run brings them together.",
}
_LESS_SLACK: Final = "The allocator keeps less in pieces: `qtui calibrate` learns its settings."
_OF_OPERATIONS: Final = ("activations", "loss", "temporaries", "key-value cache")
_COMPUTED: Final = (
    "Other kernels than the plan's may have run: compare --attention, --loss and --checkpointing, "
    "or estimate from the classes themselves with `qtui memory --trace`."
)
#: The same where tensors were counted on a CPU, whose kernels a run does not measure one by one.
_COMPUTED_ON_CPU: Final = (
    "It is in the phase {}; its cause was not measured, and kernels of a CPU may hold other "
    "tensors than those of a GPU, which the estimate assumes."
)


def largest_unexplained(levels: Sequence[Level]) -> tuple[Level, GapPart] | None:
    """The largest part at any level without a known cause, which excludes the difference of the
    level below and what other processes use. None if no such part is large enough to mention."""
    found = [
        (level, part)
        for level in levels
        for part in level.parts
        if not part.whole
        and part.name != OTHERS
        and abs(part.bytes) > WORTH * (level.estimated or 0)
    ]
    return max(found, key=lambda pair: abs(pair[1].bytes), default=None)


def explain(levels: Sequence[Level], *, tensors: bool = False) -> str:
    """One or two sentences; empty if nothing was measured. `tensors` is for a run on a CPU."""
    known = [level for level in levels if level.bytes is not None]
    if not known:
        return ""
    found = largest_unexplained(levels)
    if found is None:
        if len(known) == 1:
            what = f"At the peak no part of what is {_IS[known[0].name]} differs"
        else:
            names = ", ".join(level.name for level in known)
            what = f"At the peak of no level ({names}) does a part differ"
        return f"{what} by more than {WORTH:.1%} of the estimate, so you can plan with it."
    level, part = found
    more = "more" if part.bytes > 0 else "less"
    where = "" if len(known) == 1 else f" at the level of what is {_IS[level.name]}"
    return (
        f"The largest difference that the estimate does not explain is {part.name}, "
        f"{format_bytes(abs(part.bytes))} {more} than estimated{where}. "
        f"{_what_to_do(part, level.phase, tensors)}"
    )


#: How each level is named in a sentence.
_IS: Final = {
    "allocated": "allocated",
    "reserved": "reserved",
    "process": "in the process",
    "device": "used on the device",
}


def _what_to_do(part: GapPart, phase: str, tensors: bool) -> str:
    name = part.name
    if name == SLACK and part.bytes < 0:
        return _LESS_SLACK
    if name in _DO:
        return _DO[name]
    if name.endswith(REST) or name in _OF_OPERATIONS:
        return _COMPUTED_ON_CPU.format(phase) if tensors else _COMPUTED
    if name.startswith(CONTEXT):
        return _CALIBRATE
    return "Its parts are unknown: a run of two steps or more shows more."
