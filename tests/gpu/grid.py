"""Real steps on the GPU of this machine against their estimates: a grid of plans, in one command.

python -m tests.gpu.grid                     # on the GPU; about an hour for all three models
python -m tests.gpu.grid --only 135M         # the cases with that in their name
python -m tests.gpu.grid --device cpu --small --only full    # without a GPU: that the command works

Each case is a `qtui train` of its own, of a model with random weights made from its config.json.
Rows go to tests/gpu/measured/DEVICE.jsonl, one line a case, and recordings beside them unless
`--output` names another folder. What the estimate says does not fit is not run, and said.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

TESTS: Final = Path(__file__).parent.parent
MEASURED: Final = Path(__file__).parent / "measured"
#: Name -> config.json: 0.13, 1.2 and 8.0 billion parameters.
MODELS: Final = {
    "SmolLM2-135M": TESTS / "memory" / "measured" / "SmolLM2-135M.json",
    "Llama-3.2-1B": TESTS / "memory" / "configs" / "llama-3.2-1b.json",
    "Llama-3.1-8B": TESTS / "memory" / "configs" / "llama-3.1-8b.json",
}
#: The most percent by which a level of the estimate may differ.
BOUNDS: Final = {"resident": 0.3, "allocated": 1.0, "reserved": 5.0, "process": 6.0}
_SIZES: Final = ((1, 1024), (4, 512))
_STEPS: Final = 3
_SECONDS: Final = 900.0


@dataclass(frozen=True)
class Case:
    """A run of the grid. `more` are further options of `qtui train`."""

    model: str
    method: str
    checkpointing: bool
    batch: int
    sequence: int
    attention: str
    more: str = ""

    @property
    def name(self) -> str:
        again = "checkpoints" if self.checkpointing else "plain"
        size = f"{self.batch}x{self.sequence}"
        more = "".join(f"-{word.strip('-')}" for word in self.more.split())
        return f"{self.model}-{self.method}-{again}-{size}-{self.attention}{more}"

    @property
    def options(self) -> tuple[str, ...]:
        """Its options for `qtui train`."""
        return (
            *("--method", self.method, "--attention", self.attention),
            *("--batch", str(self.batch), "--seq", str(self.sequence)),
            "--checkpointing" if self.checkpointing else "--no-checkpointing",
            *self.more.split(),
        )


CASES: Final = tuple(
    Case(model, method, checkpointing, *size, attention)
    for model, method, checkpointing, size, attention in product(
        MODELS, ("qlora", "lora", "full"), (True, False), _SIZES, ("sdpa", "eager")
    )
)
#: What the grid does not vary, one value of an option at a time.
_VARIED: Final = {
    "qlora": (
        "--segments expandable", "--optimizer paged-adamw8bit", "--optimizer adamw8bit",
        "--kbit-prep none", "--kbit-prep norms", "--adapter-dtype bf16", "--lora-dropout 0.05",
        "--reentrant", "--quant nf4", "--quant fp4", "--quant int8", "--padding-mask",
        "--attention efficient", "--attention flash", "--no-autocast", "--dtype fp16",
        "--lora-targets q_proj,v_proj",
    ),
    "full": (
        "--segments expandable", "--optimizer adamw-fused", "--optimizer adamw8bit",
        "--optimizer paged-adamw", "--optimizer sgd", "--accumulation 2", "--dtype fp32",
        "--dtype fp32 --autocast", "--loss tiled", "--loss stock-4.48",
        "--loop manual", "--padding-mask",
    ),
    "inference": ("--generate 8", "--generate 8 --padding-mask", "--attention eager"),
}  # fmt: skip
OPTIONS: Final = tuple(
    Case("Llama-3.2-1B", method, method == "qlora", 2, 1024, "sdpa", more)
    for method, varied in _VARIED.items()
    for more in varied
)
#: Other kinds of models, by the names of their config.json.
FAMILIES: Final = tuple(
    Case(model, "lora", True, 1, 1024, "sdpa")
    for model in (
        "qwen3-0.6b", "gemma-3-1b", "gemma-2b", "phi-2", "gpt2-xl", "olmo-2-7b", "mistral-7b-v0.1",
        "qwen1.5-moe-a2.7b", "powermoe-3b", "granite-3.0-2b", "smollm3-3b", "pythia-6.9b",
        "phi-4-mini", "opt-6.7b",
    )
)  # fmt: skip


def config_of(case: Case) -> Path:
    """Its config.json."""
    return MODELS.get(case.model) or TESTS / "memory" / "configs" / f"{case.model}.json"


@dataclass(frozen=True)
class Row:
    """What a run measured and what was estimated, in bytes by level; None if unknown. `failed` is
    the program's sentence if there is nothing else."""

    case: dict[str, Any]
    device: dict[str, Any]
    versions: dict[str, str]
    plan: dict[str, Any]
    measured: dict[str, int | None]
    estimated: dict[str, int | None]
    phases: list[dict[str, Any]]
    failed: str = ""

    @property
    def errors(self) -> dict[str, float]:
        """Estimated less measured, in percent, at the levels that both have."""
        found = {}
        for level in BOUNDS:
            ours, theirs = self.estimated.get(level), self.measured.get(level)
            if ours is not None and theirs:
                found[level] = 100 * (ours - theirs) / theirs
        return found


def run(case: Case, folder: Path, device: str = "auto", config: Path | None = None) -> Row:
    """Runs a case in a process of its own, with its recording in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "qtui", "train", str(config or config_of(case))),
        *case.options,
        *("--steps", str(_STEPS), "--device", device, "--json"),
        *("--record", str(folder / f"{case.name}.jsonl")),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    try:
        told = json.loads(ended.stdout)
    except ValueError:
        return _nothing(case, _last_line(ended.stderr) or f"exit code {ended.returncode}")
    return read_row(case, told, "" if ended.returncode == 0 else _last_line(ended.stderr))


def read_row(case: Case, told: dict[str, Any], failed: str = "") -> Row:
    """The row of a run, from the JSON of `qtui train`."""
    levels = {level["level"]: level for level in told["levels"]}
    measured = {name: level["measured_bytes"] for name, level in levels.items()}
    estimated = {name: level["estimated_bytes"] for name, level in levels.items()}
    measured["resident"] = told["measured"]["resident_bytes"]
    if told["measured"].get("counted") != "tensors":  # on a GPU there are workspaces too
        estimated["resident"] = (told["estimate"] or {}).get("resident_bytes")
    return Row(
        case=asdict(case),
        device=told["device"],
        versions=told["versions"],
        plan=told["plan"],
        measured=measured,
        estimated=estimated,
        phases=told["phases"],
        failed=failed,
    )


def read_rows(folder: Path = MEASURED) -> tuple[Row, ...]:
    """All rows of a folder."""
    return tuple(
        Row(**json.loads(line))
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    )


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Lines: each row's errors by level, then the median and the worst of each."""
    yield " ".join(f"{level:>10}" for level in BOUNDS) + "  run"
    for row in rows:
        cells = [
            f"{row.errors[level]:>+10.3f}" if level in row.errors else f"{'–':>10}"
            for level in BOUNDS
        ]
        why = f"  ({row.failed})" if row.failed else ""
        yield f"{' '.join(cells)}  {Case(**row.case).name}{why}"
    for level, bound in BOUNDS.items():
        errors = [abs(row.errors[level]) for row in rows if level in row.errors]
        if errors:
            yield (
                f"{level:<10} median {statistics.median(errors):.3f} %, worst {max(errors):.3f} % "
                f"of {len(errors)} runs; asked for: at most {bound} %"
            )
        else:
            yield f"{level:<10} not measured here"


def small_config(config: Path, folder: Path) -> Path:
    """A model of the same kind that takes seconds on a CPU: two layers, a small vocabulary."""
    values = {**json.loads(config.read_text()), "num_hidden_layers": 2, "vocab_size": 512}
    values |= {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
    values |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    for token in ("bos_token_id", "eos_token_id", "pad_token_id"):
        values.pop(token, None)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / config.name
    path.write_text(json.dumps(values))
    return path


def _nothing(case: Case, why: str) -> Row:
    return Row(asdict(case), {}, {}, {}, {}, {}, [], why)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--small", action="store_true", help="two layers, short sequences")
    parser.add_argument("--output", type=Path, default=MEASURED)
    asked = parser.parse_args()
    rows = []
    for case in (*CASES, *OPTIONS, *FAMILIES):
        if asked.only not in case.name:
            continue
        config = config_of(case)
        if asked.small:
            config = small_config(config, asked.output / "configs")
            case = Case(**{**asdict(case), "sequence": case.sequence // 16})
        row = run(case, asked.output / "recordings", asked.device, config)
        rows.append(row)
        print(f"{case.name}: {row.failed or row.errors}", file=sys.stderr, flush=True)
        if not row.failed:
            name = str(row.device["name"]).replace(" ", "-").replace("/", "-")
            with (asked.output / f"{name}.jsonl").open("a", encoding="utf-8") as file:
                print(json.dumps(asdict(row)), file=file)
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
