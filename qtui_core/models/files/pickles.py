"""Pickles: weights that are not opened, and how to make safetensors of them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

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


def refusal(start: str, paths: Sequence[str], how: str = "Convert it") -> str:
    """The sentence on pickles at these paths; `start` ends in what "code from the file" follows,
    `how` is what to do once."""
    return (
        f"{start} code from the file, so qtui does not open it. {how} once, where you trust it: "
        f"{convert_command(paths)}"
    )


def convert_command(paths: Sequence[str]) -> str:
    """The command that converts the pickles at these paths, every one to a file of its own."""
    # Two pickles of one name would end in one file: the second is another form of the first.
    distinct = [*{p.rpartition(".")[0]: p for p in reversed(paths)}.values()][::-1]
    words = [shlex.quote(printable(p)) for p in distinct]
    if len(distinct) > _MAX_SPELLED:
        # Of characters, as the shards of a model differ in their numbers.
        start = os.path.commonprefix(distinct)  # noqa: RUF071
        suffixes = sorted({p.rpartition(".")[2] for p in distinct})
        words = [f"{shlex.quote(printable(start))}*.{suffix}" for suffix in suffixes]
    return " ".join([CONVERT_COMMAND, *words])
