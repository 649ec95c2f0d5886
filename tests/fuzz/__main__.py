"""Fuzzes for as long as one likes: `python -m tests.fuzz [TARGET] --seconds N --seed N`.

With `--guided` atheris, which must be installed, keeps the inputs that reach new lines and changes
those further; it needs a TARGET, and ends at the first escape.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
import traceback
from pathlib import Path
from types import FunctionType

sys.path += [str(Path(__file__).parent), str(Path(__file__).parent.parent / "support")]

from mutations import fault_of, mutated, peak_bytes
from targets import TARGETS


def fuzz(name: str, seconds: float, seed: int) -> tuple[int, dict[str, tuple[bytes, str]]]:
    """The number of inputs tried, and of each escape the shortest input and its traceback."""
    target, draw = TARGETS[name], random.Random(f"{name} {seed}")
    seeds = target.seeds()
    for raw in seeds:  # what is imported and cached at first is nobody's fault
        fault_of(target, raw)
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


def guided(name: str, seconds: float, seed: int) -> None:
    """Fuzzes with coverage; ends the process."""
    import atheris

    target = TARGETS[name]
    seeds = target.seeds()
    for raw in seeds:
        fault_of(target, raw)  # all is imported before it is instrumented
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and (each.__module__ or "").startswith("qtui"):
            atheris.instrument_func(each)

    def take(raw: bytes) -> None:
        error = fault_of(target, raw)
        if error is not None:
            raise RuntimeError(f"an escape at {raw!r}") from error

    def changed(raw: bytes, most: int, number: int) -> bytes:
        near = [raw, *seeds] if len(raw) > 2 else seeds
        return mutated(random.Random(number), near, structured=target.json)[:most]

    limits = [f"-max_total_time={seconds:.0f}", f"-seed={seed}", "-max_len=65536"]
    atheris.Setup([sys.argv[0], *limits], take, custom_mutator=changed)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("target", nargs="?", choices=[[], *TARGETS], default=[])
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--guided", action="store_true", help="by coverage, with atheris")
    asked = parser.parse_args()
    if asked.guided:
        guided(asked.target or parser.error("--guided needs a target"), asked.seconds, asked.seed)
    escapes = 0
    for name in [asked.target] if asked.target else TARGETS:
        tried, found = fuzz(name, asked.seconds, asked.seed)
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
