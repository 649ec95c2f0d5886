"""Fuzzes for as long as one likes: `python -m tests.fuzz [TARGET] --seconds N --seed N`."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parent.parent / "support")]

from mutations import fuzz, peak_bytes
from targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("target", nargs="?", choices=[[], *TARGETS], default=[])
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    asked = parser.parse_args()
    escapes = 0
    for name in [asked.target] if asked.target else TARGETS:
        tried, found = fuzz(TARGETS[name], asked.seconds, asked.seed)
        print(
            f"{name:12} {tried:10,} inputs {len(found):3} escapes, seed {asked.seed}, "
            f"peak {peak_bytes() >> 20:,} MiB",
            flush=True,
        )
        for where, (raw, told) in found.items():
            print(f"  {where}: {raw[:2000]!r}\n{told[-2500:]}", flush=True)
        escapes += len(found)
    return int(escapes > 0)


if __name__ == "__main__":
    sys.exit(main())
