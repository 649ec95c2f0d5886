"""The element types of the memory estimate: short names and sizes."""

from __future__ import annotations

from typing import Final

from qtui_core.errors import UsageError

#: Bytes per element, by the short name of the type.
SIZES: Final = {
    "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1,
}  # fmt: skip

#: The names in torch and config.json.
_ALIASES: Final = {
    "float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16",
}  # fmt: skip

FLOATING: Final = ("fp32", "bf16", "fp16")


def dtype_of(text: str) -> str:
    """The short name of a floating-point type that is given under any name that torch knows.

    Raises UsageError if it is not one.
    """
    name = text.strip().lower().removeprefix("torch.")
    name = _ALIASES.get(name, name)
    if name not in FLOATING:
        raise UsageError(
            f"{text!r} is no type a model is computed in; use {', '.join(FLOATING)} "
            "(torch's own names are taken too)."
        )
    return name
