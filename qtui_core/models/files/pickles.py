"""Pickles: weights that are not opened, and how to make safetensors of them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import takewhile

from qtui_core.models.quoting import printable

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")

#: Each file given to it becomes a safetensors file of the same name beside it. Weights-only
#: loading refuses code; `clone` undoes sharing, which safetensors does not store.
CONVERT_COMMAND = (
    'python -c "import sys, torch; from safetensors.torch import save_file; '
    "[save_file({k: v.contiguous().clone() for k, v in torch.load(p, map_location='cpu', "
    "weights_only=True).items()}, p.rpartition('.')[0] + '.safetensors') for p in sys.argv[1:]]\""
)
#: More files than this are given to the command as one pattern.
_MAX_SPELLED = 3


def weight_pickles(names: Sequence[str]) -> list[str]:
    """The pickles among the names of a folder, without the state of the training that made them
    (optimizer.pt, training_args.bin, …) where the weights have the name they usually have."""
    pickles = [n for n in names if n.lower().endswith(PICKLE_SUFFIXES)]
    return [n for n in pickles if n.startswith("pytorch_model")] or pickles


def convert_command(paths: Sequence[str]) -> str:
    """The command that converts the pickles at these paths, every one to a file of its own."""
    # Two pickles of one name would end in one file: the second is another form of the first.
    distinct = list({p.rpartition(".")[0]: p for p in reversed(paths)}.values())[::-1]
    if len(distinct) > _MAX_SPELLED:
        start = printable(_common_start(distinct))
        suffixes = {p.rpartition(".")[2] for p in distinct}
        return " ".join(
            [CONVERT_COMMAND, *(f"{shlex.quote(start)}*.{s}" for s in sorted(suffixes))]
        )
    return " ".join([CONVERT_COMMAND, *(shlex.quote(printable(p)) for p in distinct)])


def _common_start(texts: Sequence[str]) -> str:
    # The first and the last in order differ no later than any others.
    pairs = zip(min(texts), max(texts), strict=False)
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
