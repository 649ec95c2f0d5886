"""Makes hostile inputs of valid ones, and tells how a target took one."""

from __future__ import annotations

import json
import random
import re
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError, QtuiError

#: The most seconds of the processor that an input may take: others may use the machine, too.
LIMIT_SECONDS = 10
#: The most memory that an input may take, beyond the most that any took before.
LIMIT_BYTES = 1 << 30

NESTED: Any = []
for _ in range(150):
    NESTED = [NESTED]

#: Values that take the place of another in JSON.
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 127, 4000, 2**16, 2**31 - 1, 2**31, 2**53 + 1, 2**63,
    -(2**63), 2**64, 10**400, -(10**400), 0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"),
    float("-inf"), "NaN", "Infinity", "", "0", "1/0", "a" * 5000, "\x00", "\x1b[2J", "\ud800", "é",
    "../x", [], {}, [[]], [{}], {"": []}, [1, "a", None], [0] * 300, NESTED, "9" * 5000, "1e999",
    "-1", "1_0", "²", "٣", "re:(a+)+$", "re:" + "(" * 300, "re:a{99999999999}", "\u202e", 64.0,
)  # fmt: skip
#: Pieces that are put into bytes.
PIECES = (
    b"\x00", b"\xff" * 8, b"\xff\xfe", b"9" * 5000, b"1e999", b"-", b'"', b"{", b"[" * 100_000,
    b'{"a":' * 20_000, b"\n", b"\x1b", b"\x1b[", b"\x1b[200~", b"NaN", b"\\ud800", b":", b"=",
    b"a" * 10_000, b"\xef\xbb\xbf", b"\xc2\xb2", b"'''", b".a" * 5000, b";" * 300, b"\x7f",
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """What is fuzzed.

    Attributes:
        seeds: makes valid inputs.
        take: takes an input; it returns, or raises an error of the product.
        json: whether values of its JSON are exchanged, and not only bytes. Lines of JSON are
            exchanged line by line.
        errors: what it may raise.
    """

    seeds: Callable[[], Sequence[bytes]]
    take: Callable[[bytes], object]
    json: bool = True
    errors: tuple[type[Exception], ...] = (QtuiError,)


def as_json(*values: Any) -> tuple[bytes, ...]:
    return tuple(json.dumps(value).encode() for value in values)


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="qtui-fuzz-")


def folder() -> Path:
    """A folder that is deleted when the process ends."""
    return Path(_temporary().name)


def file_of(raw: bytes, name: str = "input") -> Path:
    """A file with these bytes."""
    path = folder() / name
    path.write_bytes(raw)
    return path


class TooSlow(BaseException):
    """An input took more than LIMIT_SECONDS."""


class TooLarge(BaseException):
    """An input took more than LIMIT_BYTES."""


def peak_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fault_of(target: Target, raw: bytes) -> BaseException | None:
    """What a target should not have raised at an input; None where all is well."""

    def ring(*_: object) -> None:
        raise TooSlow(f"over {LIMIT_SECONDS} s")

    peak = peak_bytes()
    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_SECONDS)
    try:
        with warnings.catch_warnings():
            # A user would see it on the screen or in a report.
            warnings.simplefilter("error", RuntimeWarning)
            target.take(raw)
    except target.errors as error:
        said = str(error)
        if isinstance(error, ModelError) and (not said.isprintable() or said[-1:] not in ".?"):
            error.add_note("It is no sentence.")
            return error
    except (Exception, TooSlow) as error:
        return error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    grown = peak_bytes() - peak
    return TooLarge(f"{grown >> 20} MiB") if grown > LIMIT_BYTES else None


def mutated(draw: random.Random, seeds: Sequence[bytes], *, structured: bool) -> bytes:
    """An input that is near one of the seeds."""
    raw = draw.choice(seeds)
    if structured and draw.random() < 0.8:
        lines = raw.split(b"\n") if b"\n{" in raw else [raw]
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            place = draw.randrange(len(lines))
            lines[place] = _other_values(draw, lines[place])
        raw = b"\n".join(lines)
        if draw.random() < 0.9:
            return raw
    for _ in range(draw.choice((1, 1, 2, 4, 8))):
        raw = _other_bytes(draw, raw, seeds)
    return raw


def _other_values(draw: random.Random, raw: bytes) -> bytes:
    try:
        whole = [json.loads(raw)]
    except (ValueError, RecursionError):
        return raw
    for _ in range(draw.choice((1, 1, 2, 3))):
        places = list(_places(whole))
        container, key = draw.choice(places)
        other, its_key = draw.choice(places)
        change = draw.random()
        if change < 0.15 and container is not whole:
            del container[key]
        elif change < 0.3:
            container[key] = _copied(other[its_key])
        elif change < 0.4:
            container[key] = draw.choice(([container[key]], {"a": container[key]}, [[], {}]))
        elif change < 0.5 and isinstance(container[key], int | float):
            container[key] *= draw.choice((-1, 2, 10, 1000))
        elif change < 0.55 and isinstance(container, dict):
            names = ("", "a", "told", "\ud800", str(key) * 2, _with_long_numbers(str(key)))
            container[draw.choice(names)] = container[key]
        elif change < 0.6 and isinstance(container[key], str):
            text = container[key]
            others = (text[:-1], text * 2, text.upper(), text + "\x00", _with_long_numbers(text))
            container[key] = draw.choice(others)
        else:
            container[key] = _copied(draw.choice(VALUES))
    return json.dumps(whole[0], ensure_ascii=draw.random() < 0.9).encode(errors="surrogatepass")


def _with_long_numbers(text: str) -> str:
    """With more digits than Python converts in place of each number; one behind it without any."""
    changed = re.sub(r"\d+", "9" * 5000, text)
    return changed if changed != text else text + "9" * 5000


def _copied(value: Any) -> Any:
    """A copy, so that no list comes to contain itself."""
    return json.loads(json.dumps(value))


def _places(found: Any) -> Iterator[tuple[Any, Any]]:
    """Each value in lists and objects, as what contains it and its key."""
    waiting = [found]
    while waiting:
        inner = waiting.pop()
        for key in inner if isinstance(inner, dict) else range(len(inner)):
            yield inner, key
            if isinstance(inner[key], list | dict):
                waiting.append(inner[key])


def _other_bytes(draw: random.Random, raw: bytes, seeds: Sequence[bytes]) -> bytes:
    start, stop = sorted(draw.randint(0, len(raw)) for _ in range(2))
    match draw.randrange(8):
        case 0:
            return raw[:start]
        case 1:
            return raw[:start] + raw[stop:]
        case 2:
            return raw[:stop] + raw[start:]
        case 3:
            return raw[:start] + draw.choice(PIECES) + raw[start:]
        case 4:
            other = draw.choice(seeds)
            return raw[:start] + other[draw.randint(0, len(other)) :]
        case 5:
            return raw[:start] + draw.randbytes(draw.choice((1, 4, 8))) + raw[start:]
    flipped = bytearray(raw)
    for _ in range(draw.choice((1, 1, 2, 8)) if raw else 0):
        flipped[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    return bytes(flipped)


def fuzz(target: Target, seconds: float, seed: int) -> tuple[int, dict[str, tuple[bytes, str]]]:
    """The number of inputs tried, and of each escape the shortest input and its traceback."""
    draw, seeds = random.Random(seed), target.seeds()
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
            if where not in found or len(raw) < len(found[where][0]):
                found[where] = raw, "".join(traceback.format_exception(error)[-12:])
    return tried, found
