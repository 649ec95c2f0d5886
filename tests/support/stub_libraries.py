"""Stub packages that replace a library and fail in ways that tests cannot wait for."""

from __future__ import annotations

import os
from pathlib import Path

ABSENT = "raise ModuleNotFoundError(\"No module named 'NAME'\", name='NAME')"
NOISY = """
import os
print("welcome to NAME")
os.write(1, b'{"done": true}')
raise ImportError("libfoo.so.1: cannot open shared object file")
"""
ABORTS = "import os; os.abort()"
HANGS = "import time; time.sleep(600)"

#: A gguf in which one function ends the process and another raises.
FRAGILE_GGUF = """
import enum, os, types

class GGMLQuantizationType(enum.Enum):
    Q4_0 = 0; Q5_0 = 1; Q8_0 = 2; Q4_1 = 3; MXFP4 = 4; TQ2_0 = 5; BF16 = 6; F16 = 7

class QuantError(Exception): ...

def quantize(x, kind):
    if kind is GGMLQuantizationType.Q5_0:
        os.abort()
    raise RuntimeError("made to fail\\nwith a second line")

GGML_QUANT_SIZES = {}
quants = types.SimpleNamespace(quantize=quantize, QuantError=QuantError)
"""

#: Makes qtui's own side of one convention use another scheme, in whatever process it is imported.
TAMPERED = """
from qtui_core.conformance.catalogue import LIBRARIES
every = (each for library in LIBRARIES for each in library.conventions)
found = next(each for each in every if each.id == "gguf.q4_0")
object.__setattr__(found, "ours", "int4:group32:full")
"""


def stub(folder: Path, name: str, text: str) -> dict[str, str]:
    """Writes a module `name`; returns environment variables with which it hides the real one."""
    (folder / f"{name}.py").write_text(text.replace("NAME", name))
    path = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *([path] if path else [])])}
