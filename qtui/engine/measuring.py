"""Rates of this machine in a process of its own: `python -m qtui.engine.measuring [DEVICE]`.

Writes a line of JSON for the device, {"device": {...}}, and one for each rate, {"rate": {...}}, as
they are measured, or {"error", "code"}, to what was stdout when it started; what libraries print
goes to stderr. The memory it takes on a GPU goes with it.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from qtui_core.errors import QtuiError


def main() -> None:
    """Measures once."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    with answer:
        try:
            _measure(sys.argv[1] if len(sys.argv) > 1 else "auto", answer)
        except QtuiError as error:
            print(json.dumps({"error": str(error), "code": error.exit_code}), file=answer)


def _measure(wanted: str, answer: Any) -> None:
    import torch

    from qtui_core.training.rates import facts_of, measure_rates

    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(wanted)
    print(json.dumps({"device": asdict(facts_of(device))}), file=answer)
    for rate in measure_rates(device):
        print(json.dumps({"rate": asdict(rate)}), file=answer)


if __name__ == "__main__":
    main()
