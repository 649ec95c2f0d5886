"""What the headers of a checkpoint say; no values are read."""

from __future__ import annotations

from fnmatch import fnmatchcase

from qtui_core.errors import UsageError
from qtui_core.inspection.completeness import check_completeness, faults
from qtui_core.inspection.report import Census, DtypeCount, Inspection, TensorReport
from qtui_core.models import ModelSource, TensorInfo
from qtui_core.quantities import percent


def take_census(source: ModelSource) -> Census:
    """Parameters and bytes by dtype, largest first."""
    by_dtype: dict[str, list[TensorInfo]] = {}
    for info in source.tensors.values():
        by_dtype.setdefault(info.dtype, []).append(info)
    counts = [
        DtypeCount(dtype, len(own), sum(i.parameters for i in own), sum(i.nbytes for i in own))
        for dtype, own in by_dtype.items()
    ]
    return Census(
        model=source.id,
        origin=source.origin,
        location=source.location,
        architecture=source.architecture,
        parameters=source.parameters,
        nbytes=source.nbytes,
        dtypes=tuple(sorted(counts, key=lambda c: -c.nbytes)),
        quantization=source.quantization.detail if source.quantization else None,
    )


def select_tensors(source: ModelSource, pattern: str | None) -> tuple[TensorInfo, ...]:
    """The tensors whose name matches a shell pattern (`*.mlp.*`), or all.

    Raises UsageError, which names an existing tensor, if nothing matches.
    """
    infos = tuple(source.tensors.values())
    if pattern is None:
        return infos
    chosen = tuple(i for i in infos if fnmatchcase(i.name, pattern))
    if not chosen and infos:
        raise UsageError(
            f"No tensor of {source.id} matches {pattern!r}. Names look like "
            f"{infos[len(infos) // 2].name!r}; `*` matches any characters."
        )
    return chosen


def census_only(source: ModelSource, pattern: str | None = None) -> Inspection:
    """An inspection that reads no values."""
    census, complete = take_census(source), check_completeness(source)
    chosen = select_tensors(source, pattern)
    wrong = faults(complete, census.model)
    return Inspection(
        census=census,
        tensors=tuple(TensorReport(info, sampled_parameters=0) for info in chosen),
        schemes=(),
        measured=False,
        sample="No values were read: this is what the headers say.",
        conclusion=f"{wrong}; {conclude_census(census)}" if wrong else conclude_census(census),
        completeness=complete,
    )


def conclude_census(census: Census) -> str:
    """One sentence: what is stored, and whether there is anything to quantize."""
    if not census.dtypes:
        return (
            f"{census.model} is a configuration without weights, so there is nothing to measure; "
            f"open a folder with .safetensors files to see what quantizing costs."
        )
    if not census.nbytes:
        return f"No tensor of {census.model} has an element, so there is nothing to quantize."
    share, dtype = percent(census.dtypes[0].nbytes / census.nbytes), census.dtypes[0].dtype
    stored = f"{share} of {census.model}'s bytes are {dtype}"
    if census.quantization:
        return (
            f"{stored}, and the checkpoint is quantized already; "
            f"`qtui inspect ORIGINAL --against {census.model}` shows what it kept of the original."
        )
    bits = 8 * census.nbytes / census.parameters if census.parameters else 0.0
    return (
        f"{stored}, {bits:.3g} bits per parameter; read the values to see what 4 or 8 would cost."
    )
