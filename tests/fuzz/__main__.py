"""Fuzzes for as long as one likes: `python -m tests.fuzz [TARGET] --seconds N --seed N`."""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from mutations import fault_of, mutated
from targets import TARGETS


def fuzz(name: str, seconds: float, seed: int) -> tuple[int, dict[str, tuple[bytes, str]]]:
    """The number of inputs tried, and of each escape the shortest input and its traceback."""
    target, draw = TARGETS[name], random.Random(f"{name} {seed}")
    seeds = target.seeds()
    found: dict[str, tuple[bytes, str]] = {}
    tried, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        raw = mutated(draw, seeds, structured=target.json)
        error = fault_of(target, raw)
        tried += 1
        if error is not None:
            lines = traceback.extract_tb(error.__traceback__)
            ours = [line for line in lines if "/qtui" in line.filename] or lines
            # Of what is too slow, the line differs from input to input.
            at = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}"
            where = type(error).__name__ + at * isinstance(error, Exception)
            told = "".join(traceback.format_exception(error)[-12:])
            if where not in found or len(raw) < len(found[where][0]):
                found[where] = raw, told
    return tried, found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", nargs="?", choices=[[], *TARGETS], default=[])
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    asked = parser.parse_args()
    escapes = 0
    for name in [asked.target] if asked.target else TARGETS:
        tried, found = fuzz(name, asked.seconds, asked.seed)
        print(f"{name:12} {tried:10,} inputs {len(found):3} escapes, seed {asked.seed}", flush=True)
        for where, (raw, told) in found.items():
            print(f"  {where}: {raw[:2000]!r}\n{told[-2500:]}", flush=True)
        escapes += len(found)
    return int(escapes > 0)


if __name__ == "__main__":
    sys.exit(main())
