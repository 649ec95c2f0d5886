"""The profile of one GPU: the measurements of `qtui calibrate`, as a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from statistics import median
from typing import Any, Final

from qtui_core.codec import CodecError, from_plain, to_plain
from qtui_core.dataclass import dataclass
from qtui_core.errors import QtuiError, UsageError
from qtui_core.memory.devices.device import Calibration, parse_version

#: The version of the file format. A later version is refused.
SCHEMA_VERSION: Final = 1
#: More than the memory of any GPU.
_MOST_BYTES: Final = 1 << 50


class ProfileError(QtuiError):
    """A profile cannot be read."""


@dataclass(frozen=True)
class MeasuredStep:
    """A step of the grid: its plan in a few words, and bytes at each level, estimated without a
    profile and measured. None if unknown; `failure` is a sentence if the run failed."""

    name: str
    estimated_allocated: int | None = None
    allocated: int | None = None
    estimated_reserved: int | None = None
    reserved: int | None = None
    estimated_process: int | None = None
    process: int | None = None
    context: int | None = None
    seconds: float | None = None
    failure: str = ""


@dataclass(frozen=True)
class Profile:
    """What was measured of a device, and with which versions.

    Attributes:
        device: as its driver names it; total_memory, capability: from CUDA.
        made: when, ISO 8601 with the time zone.
        driver, versions: of the driver; of torch and other libraries by name.
        context_first: bytes of the process besides torch's reserved bytes after the first tensor;
            context_products: after products and their backward pass; None if the driver does not
            report the memory of a process. `context_basis` says how the process was identified.
        workspace_forward, workspace_training: as in Calibration.
        segments: bytes that the allocator reserved for one tensor, by the bytes of that tensor.
        allocator: the settings of the allocator, from torch.
        steps: the grid.
    """

    device: str
    made: str
    driver: str | None
    versions: Mapping[str, str]
    total_memory: int | None
    capability: tuple[int, int] | None
    context_first: int | None
    context_products: int | None
    context_basis: str
    workspace_forward: int
    workspace_training: int
    segments: Mapping[str, int] = field(default_factory=dict)
    allocator: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[MeasuredStep, ...] = ()
    schema_version: int = SCHEMA_VERSION

    @property
    def contexts(self) -> tuple[int, ...]:
        """Every measurement of the context, in bytes."""
        known = [self.context_first, self.context_products, *(each.context for each in self.steps)]
        return tuple(value for value in known if value is not None)

    @property
    def calibration(self) -> Calibration:
        """What an estimate uses: the median context after steps, which have loaded the kernels of a
        step, or else after products."""
        after_steps = [each.context for each in self.steps if each.context is not None]
        context = round(median(after_steps)) if after_steps else self.context_products
        return Calibration(
            made=self.made[:10],
            torch=parse_version(self.versions.get("torch", "")),
            context=context,
            context_low=min(self.contexts, default=0),
            context_high=max(self.contexts, default=0),
            workspace_forward=self.workspace_forward,
            workspace_training=self.workspace_training,
        )

    def to_json(self) -> str:
        return json.dumps(to_plain(self), indent=1) + "\n"


def profile_of(text: str) -> Profile:
    """The profile in the text of a file.

    Raises ProfileError if it is not a profile, or one of a later version.
    """
    again = "Run qtui calibrate again."
    try:
        data = json.loads(text)
        version = data["schema_version"]
        if version != SCHEMA_VERSION:
            raise ProfileError(
                f"It has version {version}, and this qtui reads version {SCHEMA_VERSION}. {again}"
            )
        found = from_plain(Profile, data)
        parse_version(found.versions.get("torch", ""))
    except CodecError as error:
        raise ProfileError(f"It is no profile of a GPU ({error.reason}). {again}") from error
    except UsageError as error:
        raise ProfileError(f"{error} {again}") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ProfileError(f"It is no profile of a GPU ({error}). {again}") from error
    numbers = (found.workspace_forward, found.workspace_training, *found.contexts)
    if not all(0 <= number < _MOST_BYTES for number in numbers):
        raise ProfileError(f"It has a size that is no number of bytes of a GPU. {again}")
    return found
