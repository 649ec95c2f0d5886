"""One scan of a tensor for everything that is asked about it.

Errors, statistics, histograms, columns, outliers and codes are reducers. Reducers with the same
segments share a reading, which for most schemes and shapes is all of them. Each result is the same,
bit for bit, as if it were computed alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from qtui_core.quant.segments.elements import Elements, ModelExtent, TensorLike, elements_of
from qtui_core.quant.segments.parallel import Part, Reducer, Watch, fractions_of, read, thread_count
from qtui_core.quant.segments.process import Plan, first_passes, make_plan, unread_plan
from qtui_core.schemes.scheme import Scheme


class SchemeReducer(Reducer[Part]):
    """A reducer that depends on schemes. `plans`, one for each scheme, and `model_absmax` are set
    before `begin` is called."""

    plans: tuple[Plan, ...]
    model_absmax: ModelExtent | None = None

    def __init__(self, *schemes: Scheme) -> None:
        self.schemes = schemes

    @property
    def scheme(self) -> Scheme:
        """The first scheme, usually the only one."""
        return self.schemes[0]

    @property
    def plan(self) -> Plan:
        """The plan of the first scheme."""
        return self.plans[0]

    @property
    def multiple(self) -> int:
        return self.plan.multiple


def scan(
    x: TensorLike,
    reducers: Sequence[Reducer[Any]],
    *,
    model_absmax: ModelExtent | None = None,
    plans: Mapping[Scheme, Plan] | None = None,
    **watch: Unpack[Watch],
) -> None:
    """Reads a tensor for all reducers; after that their results are valid.

    Args:
        x: what `quantize` takes. The rows of a reader are requested in order, on this thread.
        reducers: what to compute.
        model_absmax: as for `quantize`.
        plans: plans of schemes for this tensor, as `make_plan` returns them. A missing plan is made
            first, which may take a reading or two (`first_passes`).
        watch: see `Watch`.

    Raises:
        Cancelled: `cancelled()` was true.
        UsageError: `x` is not a tensor of real numbers.
    """
    elements = elements_of(x)
    threads, cancelled = watch.get("threads"), watch.get("cancelled")
    known = dict(plans or {})
    about = [reducer for reducer in reducers if isinstance(reducer, SchemeReducer)]
    missing = dict.fromkeys(s for reducer in about for s in reducer.schemes if s not in known)
    for reducer in about:
        reducer.plans = tuple(
            known.get(scheme) or unread_plan(scheme, elements.shape) for scheme in reducer.schemes
        )
    readings = _cut_alike(elements, reducers)
    passes = sum(first_passes(scheme, elements.shape, model_absmax) for scheme in missing)
    total = passes * elements.count + sum(together[0].reads(elements) for together in readings)
    advance = fractions_of(watch.get("progress"), total)
    with np.errstate(all="ignore"):
        for scheme in missing:
            known[scheme] = make_plan(
                elements, scheme, model_absmax,
                threads=thread_count(elements.count, threads),
                advance=advance, cancelled=cancelled,
            )  # fmt: skip
    for reducer in about:
        reducer.plans = tuple(known[scheme] for scheme in reducer.schemes)
        reducer.model_absmax = model_absmax
    for together in readings:
        count = thread_count(together[0].reads(elements), threads)
        read(elements, together, threads=count, advance=advance, cancelled=cancelled)


def _cut_alike(elements: Elements, reducers: Sequence[Reducer[Any]]) -> list[list[Reducer[Any]]]:
    """Groups the reducers that can share a reading. Other segments would change the last bits of
    their sums."""
    found: dict[Hashable, list[Reducer[Any]]] = {}
    for reducer in reducers:
        found.setdefault(reducer.cut(elements), []).append(reducer)
    return list(found.values())
