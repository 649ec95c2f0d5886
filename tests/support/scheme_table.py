"""Lists of schemes for tests that run over all schemes."""

from __future__ import annotations

INTEGERS = [f"int{bits}" for bits in range(2, 9)]
SMALL_FLOATS = ["e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "e3m0"]
CASTS = ["bf16", "fp16", "tf32"]
GRANULARITIES = ["model", "tensor", "row", "column", "group64", "group7", "block64", "block33"]
MORE_GRANULARITIES = ["token", "tile5x9", "tile4x100"]
OPTIONS = ["", ":asym", ":full", ":signed"]
MICROSCALING = ["mxfp4", "mxfp6-e3m2", "mxfp6-e2m3", "mxfp8-e4m3", "mxfp8-e5m2", "mxint8"]


def every_scheme() -> list[str]:
    """The text of a scheme for every format, option and granularity."""
    integers = [f"{n}:{g}{o}" for g in GRANULARITIES for n in INTEGERS for o in OPTIONS]
    return integers + every_other_scheme()


def every_pair() -> list[str]:
    """The same with fewer integers: every pair of width, granularity and option, not every triple.
    For slow tests."""
    integers = [
        f"{name}:{granularity}{OPTIONS[(i + j) % len(OPTIONS)]}"
        for i, name in enumerate(INTEGERS)
        for j, granularity in enumerate(GRANULARITIES)
    ]
    return integers + every_other_scheme()


def every_other_scheme() -> list[str]:
    """All schemes except the integers in each granularity."""
    texts = list(CASTS)
    texts += [f"{name}:{granularity}" for granularity in GRANULARITIES for name in SMALL_FLOATS]
    for granularity in MORE_GRANULARITIES:
        texts += [f"{name}:{granularity}" for name in ("int2", "int8", "e4m3", "e3m0")]
        texts += [f"int4:{granularity}{option}" for option in OPTIONS]
    texts += [f"{name}{rule}" for name in MICROSCALING for rule in ("", ":ceil", ":even", ":rceil")]
    texts += ["nvfp4", "nf4:block64:dq64", "nf4:block33:dq100", "fp4:block64:dq1024"]
    texts += [f"ternary:{g}" for g in (*GRANULARITIES, *MORE_GRANULARITIES) if g != "model"]
    for size in (64, 33, 1024):
        for name in ("nf4", "fp4"):
            texts += [f"{name}:block{size}", f"{name}:block{size}:dq"]
    return texts


EVERY_SCHEME = every_scheme()
EVERY_PAIR = every_pair()
