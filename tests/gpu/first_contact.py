"""Everything that qtui says of a GPU, done once on the GPU of this machine, in one command.

python -m tests.gpu.first_contact FOLDER                    # all parts, the grid last
python -m tests.gpu.first_contact FOLDER --only nvml,rates  # parts with these in their names
python -m tests.gpu.first_contact FOLDER --seconds 300      # begins nothing later than that
python -m tests.gpu.first_contact FOLDER --device cpu --only step,ctrl,killed   # that it works

Each part is a process of its own and writes FOLDER/PART.json: its command, exit code, seconds and
what it printed. A part whose file is there is not run again, so that a machine that is lent for
minutes gets on call by call. Parts that time something or fill the memory run alone, the others
side by side as far as the GPU has room for their estimates.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import pickle
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests.gpu.grid import CASES, FAMILIES, MODELS, OPTIONS, Case, config_of, run

QTUI: Final = (sys.executable, "-m", "qtui")
#: The most seconds of a part.
_PATIENCE: Final = 240.0
#: Lines of its output that a part keeps.
_KEPT: Final = 400_000
#: Bytes of the GPU's memory that no part is given.
_MARGIN: Final = 6 << 30
#: About what a process takes besides the tensors of a small model.
_SMALL: Final = 2 << 30
_SCHEMES: Final = ("--schemes", "nf4,int8", "--windows", "4")
#: The plan in which memory runs out, by the phase in which it should.
OUT_OF_MEMORY: Final[dict[str, dict[str, Any]]] = {
    "load": {"batch": 2, "sequence": 2048},
    "forward": {"batch": 2, "sequence": 2048},
    "backward": {"batch": 1, "sequence": 128, "optimizer": "sgd"},  # else states are larger
    "optimizer": {"batch": 1, "sequence": 128},
}


#: The cases whose every allocation is recorded: where the estimate was off, and one of each method.
HISTORIES: Final = tuple(
    case
    for case in CASES
    if case.name
    in (
        "Llama-3.1-8B-qlora-checkpoints-4x512-eager",
        "SmolLM2-135M-qlora-checkpoints-4x512-sdpa",
        "SmolLM2-135M-qlora-plain-1x1024-eager",
        "SmolLM2-135M-full-checkpoints-4x512-eager",
        "SmolLM2-135M-lora-plain-1x1024-sdpa",
        "Llama-3.2-1B-lora-checkpoints-1x1024-sdpa",
    )
)


@dataclass(frozen=True)
class Part:
    """A part: its name, the command that does it, the bytes of the GPU that it needs, and whether
    nothing else may run meanwhile."""

    name: str
    command: tuple[str, ...]
    nbytes: int = _SMALL
    alone: bool = False


def parts(folder: Path, device: str) -> Iterator[Part]:
    """All parts, in the order in which they begin."""
    here = (sys.executable, "-m", "tests.gpu.first_contact", str(folder), "--device", device)

    def own(name: str, nbytes: int = _SMALL, alone: bool = False) -> Part:
        return Part(name, (*here, "--do", name), nbytes, alone)

    yield own("nvml", alone=True)
    yield Part("doctor", (*QTUI, "doctor", "--json"))
    for method in ("qlora", "lora", "full"):
        record = str(folder / f"demo-{method}.jsonl")
        options = ("--method", method, "--steps", "4", "--device", device, "--record", record)
        yield Part(f"step-{method}", (*QTUI, "train", "demo", *options, "--json", "--force"))
    yield Part("step-words", (*QTUI, "train", "demo", "--device", device, "--ranges"))
    yield own("ctrl-c")
    yield own("killed")
    yield own("app")
    for kind in ("native", "expandable", "streams", "oom"):
        yield own(f"snapshot-{kind}")
    for case in HISTORIES:
        yield own(f"history-{case.name}", 20 << 30)
    yield Part("eval", (*QTUI, "eval", "demo", *_SCHEMES, "--device", device, "--json"))
    yield Part("lab", (*QTUI, "lab", "underflow", "--device", device, "--json"))
    options = ("--method", "qlora", "--seq", "1024", "--steps", "6", "--device", device)
    large = (*QTUI, "train", str(MODELS["Llama-3.1-8B"]), *options)
    record = str(folder / "qlora-8b.jsonl")
    yield Part("record-8b", (*large, "--record", record, "--force"), 16 << 30, alone=True)
    trace = (*QTUI, "memory", str(MODELS["SmolLM2-135M"]), "--trace", "--json")
    yield Part("trace", trace)  # fake tensors where the GPU is real
    yield own("rates", 8 << 30, alone=True)
    yield own("tensor", 8 << 30, alone=True)
    yield Part("calibrate", (*QTUI, "calibrate", "--json"), 8 << 30, alone=True)
    for phase in OUT_OF_MEMORY:
        yield own(f"oom-{phase}", alone=True)


def plan_of(case: Case) -> Any:
    """The plan of a case, without its further options."""
    from qtui_core.memory.plan.run_plan import RunPlan

    return RunPlan(
        method=case.method,
        batch=case.batch,
        sequence=case.sequence,
        checkpointing=case.checkpointing,
        attention=case.attention,
    )


def grid_parts(folder: Path) -> Iterator[Part]:
    """The cases of the grid, the largest first, beside which the others find room."""
    from qtui_core.memory.estimate import estimate
    from qtui_core.memory.shape.from_config import shape_from_config

    found: list[Part] = []
    for case in (*CASES, *OPTIONS, *FAMILIES):
        shape = shape_from_config(json.loads(config_of(case).read_text()))
        nbytes = estimate(shape, plan_of(case)).peak_reserved_bytes + (1 << 30)
        here = (sys.executable, "-m", "tests.gpu.first_contact", str(folder))
        found.append(Part(f"grid-{case.name}", (*here, "--do", f"grid-{case.name}"), nbytes))
    yield from sorted(found, key=lambda part: -part.nbytes)


# What the parts do that are no single command. -----------------------------------------------


def do_nvml(device: str, folder: Path) -> Any:
    """All that NVML answers, and the error of what it does not."""
    from qtui_core.telemetry.readings import (
        DeviceReader,
        answer_or_error,
        read_all,
        read_devices,
        read_driver,
        start_nvml,
    )
    from qtui_core.training.run.placement import gpus

    found: dict[str, Any] = {
        "driver": read_driver(),
        "devices": read_devices(),
        "readings": read_all(),
        "gpus": gpus(),
    }
    nvml = start_nvml()
    if nvml is not None:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        asked = (
            "nvmlDeviceGetName",
            "nvmlDeviceGetUUID",
            "nvmlDeviceGetMemoryInfo",
            "nvmlDeviceGetUtilizationRates",
            "nvmlDeviceGetMigMode",
            "nvmlDeviceGetComputeRunningProcesses",
            "nvmlDeviceGetGraphicsRunningProcesses",
            "nvmlDeviceGetEnforcedPowerLimit",
        )
        found["raw"] = {name: str(answer_or_error(nvml, name, handle)) for name in asked}
        import torch

        torch.ones(1 << 28, device=device)
        found["with a tensor"] = read_all()
        uuid = str(torch.cuda.get_device_properties(0).uuid)
        found["uuid of torch"] = uuid
        found["pid"] = os.getpid()
        with DeviceReader(uuid=uuid) as reader:
            found["own"] = reader.read()
        found["reserved"] = torch.cuda.memory_reserved()
    return found


def do_rates(device: str, folder: Path) -> Any:
    """Every rate that Hardware measures."""
    import torch

    from qtui_core.training.measuring.rates import facts_of, measure_rates

    where = torch.device(device)
    return {"facts": facts_of(where), "rates": list(measure_rates(where))}


def do_tensor(device: str, folder: Path) -> Any:
    """Seconds to quantize a bf16 tensor `[4096, 14336]` with bitsandbytes and to take statistics of
    it, each beside the copy of its bytes."""
    import torch
    from bitsandbytes import functional

    from qtui_core.training.measuring.rates import measure_copy, time_calls

    where = torch.device(device)
    tensor = torch.randn(4096, 14336, device=where, dtype=torch.bfloat16)
    packed, state = functional.quantize_4bit(tensor, blocksize=64, quant_type="nf4")
    work: dict[str, Callable[[], object]] = {
        "copy": tensor.clone,
        "nf4": lambda: functional.quantize_4bit(tensor, blocksize=64, quant_type="nf4"),
        "nf4 back": lambda: functional.dequantize_4bit(packed, state),
        "int8 rows": lambda: functional.int8_vectorwise_quant(tensor.half()),
        "absmax of rows": lambda: tensor.abs().amax(1),
        "mean and deviation": lambda: torch.std_mean(tensor.float()),
    }
    seconds = {name: statistics.median(time_calls(call, where)) for name, call in work.items()}
    return {"bytes": tensor.nbytes, "copy": measure_copy(where), "seconds": seconds}


def do_ctrl_c(device: str, folder: Path) -> Any:
    """Ctrl-C in the middle of a run."""
    return _interrupted(device, folder, lambda run: run.send_signal(signal.SIGINT))


def do_killed(device: str, folder: Path) -> Any:
    """The run's process is killed."""

    def kill(run: subprocess.Popen[str]) -> None:
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)

    return _interrupted(device, folder, kill)


def _interrupted(
    device: str, folder: Path, end: Callable[[subprocess.Popen[str]], None]
) -> dict[str, Any]:
    name = f"{end.__qualname__.split('.')[0].removeprefix('do_')}-{os.getpid()}"
    record = folder / f"{name}.jsonl"
    before = _used()
    options = ("--steps", "1000000", "--device", device, "--record", str(record))
    with subprocess.Popen(
        (*QTUI, "train", "demo", *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        started = time.monotonic()
        while time.monotonic() - started < 90 and run.poll() is None:
            if record.exists() and record.read_text().count('"told":"step"') > 20:
                break
            time.sleep(0.2)
        during, asked = _used(), time.monotonic()
        end(run)
        out, err = run.communicate(timeout=60)
        seconds = time.monotonic() - asked
    time.sleep(1)
    return {
        "exit code": run.returncode,
        "seconds to the end": seconds,
        "used before, during, after": (before, during, _used()),
        "stdout": out[-3000:],
        "stderr": err[-2000:],
        "lines": record.read_text().count("\n"),
    }


def _used() -> int | None:
    from qtui_core.telemetry.readings import read_devices

    found = read_devices()
    return found[0].memory_used if found else None


def do_app(device: str, folder: Path) -> Any:
    """A run in the app, in a terminal: what its panels show while it runs and afterwards."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
    from terminals import program

    shown = {}
    home = folder / "home"
    home.mkdir(exist_ok=True)
    kept = {k: v for k, v in os.environ.items() if k in ("PYTHONPATH", "LD_LIBRARY_PATH", "PATH")}
    with program(home, "-m", "qtui", "demo", size=(120, 40), **kept) as terminal:
        terminal.wait_for("parameters", 60)
        terminal.send("4")
        terminal.settle(1.0, 8)
        shown["memory"] = terminal.text
        terminal.send("7")
        terminal.settle(1.0, 8)
        shown["hardware"] = terminal.text
        terminal.send("5")
        terminal.wait_for("estimate", 30)
        terminal.send("r")
        with contextlib.suppress(AssertionError):
            terminal.wait_for("The loss", 60)
        shown["running"] = terminal.text
        with contextlib.suppress(AssertionError):
            terminal.wait_for("steps were run.", 60)
        terminal.settle(1.0, 5)
        shown["done"] = terminal.text
        (folder / "app.bytes").write_bytes(terminal.written)
    return shown


def do_snapshot(kind: str, device: str, folder: Path) -> Any:
    """Four steps of a small model with torch's history of its allocator; FOLDER/KIND.pickle.gz."""
    if kind == "expandable":
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 32000}
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads)).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    side = torch.cuda.Stream()
    kept, failed = [], ""
    for step in range(4):
        ids = torch.randint(32000, (4, 512))
        if kind == "streams":
            with torch.cuda.stream(side):
                ids = ids.pin_memory().to(device, non_blocking=True)
                ahead = torch.ones(64 << 20, dtype=torch.uint8, device=device)
            torch.cuda.current_stream().wait_stream(side)
            ids.record_stream(torch.cuda.current_stream())
            del ahead
        ids = ids.to(device)
        try:
            model(ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if kind == "oom" and step == 2:
                free = torch.cuda.mem_get_info()[0]
                kept.append(torch.empty(free + (1 << 30), dtype=torch.uint8, device=device))
        except torch.OutOfMemoryError as error:
            failed = str(error)
            break
    torch.cuda.synchronize()
    snapshot = torch.cuda.memory._snapshot()
    path = folder / f"snapshot-{kind}.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps(snapshot)))
    stats = torch.cuda.memory_stats()
    return {
        "torch": str(torch.__version__),
        "keys": sorted(snapshot),
        "events": [len(trace) for trace in snapshot["device_traces"]],
        "segments": len(snapshot["segments"]),
        "bytes": path.stat().st_size,
        "failed": failed,
        "peaks": {k: stats[f"{k}_bytes.all.peak"] for k in ("allocated", "reserved")},
    }


def do_history(name: str, device: str, folder: Path) -> Any:
    """A case of the grid here, with torch's history of its allocator and the time at which each
    phase began; FOLDER/history-CASE.pickle.gz."""
    from qtui.engine.run.prepared_run import prepare_run
    from qtui_core.training.run.request import Controls, RunRequest

    (case,) = (case for case in HISTORIES if case.name == name)
    asked = RunRequest(str(config_of(case)), plan_of(case), 3, device=device, taking=True)
    prepared = prepare_run(asked)
    os.environ.update(prepared.environment)
    import torch

    from qtui_core.training.run.live import run_to_end

    torch.cuda.memory._record_memory_history(max_entries=200_000, context="alloc", stacks="python")
    told: list[tuple[int, str]] = []
    with prepared.source as source:
        began = time.perf_counter()
        code = run_to_end(
            source,
            prepared.order,
            lambda event: told.append((time.time_ns() // 1000, repr(event))),
            Controls(),
            began,
        )
    snapshot = torch.cuda.memory._snapshot()
    path = folder / f"history-{name}.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps((snapshot, told))))
    return {"exit code": code, "events": [len(trace) for trace in snapshot["device_traces"]]}


def do_oom(phase: str, device: str, folder: Path) -> Any:
    """A run of a 1.2 B model while another process leaves it too little for `phase`."""
    from qtui_core.memory.estimate import estimate
    from qtui_core.memory.plan.run_plan import RunPlan
    from qtui_core.memory.shape.from_config import shape_from_config

    config = MODELS["Llama-3.2-1B"]
    shape = shape_from_config(json.loads(config.read_text()))
    plan = RunPlan(method="full", checkpointing=False, **OUT_OF_MEMORY[phase])
    options = [
        *("--method", "full", "--no-checkpointing", "--optimizer", plan.optimizer),
        *("--batch", str(plan.batch), "--seq", str(plan.sequence)),
    ]
    peaks = {one.name: one.allocated_bytes for one in estimate(shape, plan).phases}
    order = [str(name) for name in peaks]
    own = peaks[phase]
    earlier = max((peaks[name] for name in order[: order.index(phase)]), default=0)
    leaves = (own + earlier) // 2 + (1 << 29)
    holding = subprocess.Popen(
        (sys.executable, "-c", _HOLD, device, str(leaves)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holding.stdout is not None
    held = holding.stdout.readline().strip()
    before = _used()
    try:
        done = subprocess.run(
            (*QTUI, "train", str(config), *options, "--steps", "2", "--device", device, "--yes"),
            capture_output=True,
            text=True,
            timeout=120,
        )
        after = _used()
    finally:
        holding.communicate()
    return {
        "exit code": done.returncode,
        "left": leaves,
        "held": held,
        "used before and after": (before, after),
        "stdout": done.stdout[-3500:],
        "stderr": done.stderr[-2500:],
        "peaks": peaks,
    }


#: Holds all but so many bytes of the GPU until its stdin closes.
_HOLD: Final = """
import sys, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(max(0, free - int(sys.argv[2])), dtype=torch.uint8, device=sys.argv[1])
print(held.numel(), flush=True)
sys.stdin.read()
"""


def do(name: str, device: str, folder: Path) -> Any:
    """Does a part that is no single command, and returns what it found."""
    kind, _, rest = name.partition("-")
    if kind == "grid":
        (case,) = (case for case in (*CASES, *OPTIONS, *FAMILIES) if case.name == rest)
        return asdict(run(case, folder / "recordings"))
    of_kind: dict[str, Callable[[str, str, Path], Any]]
    of_kind = {"snapshot": do_snapshot, "history": do_history, "oom": do_oom}
    if kind in of_kind:
        return of_kind[kind](rest, device, folder)
    found: Callable[[str, Path], Any] = globals()[f"do_{name.replace('-', '_')}"]
    return found(device, folder)


# The command. --------------------------------------------------------------------------------


class Machine:
    """Runs parts side by side, as far as the memory of the GPU and `lanes` allow."""

    def __init__(self, folder: Path, lanes: int, nbytes: int, end: float) -> None:
        self._folder, self._lanes, self._free, self._end = folder, lanes, nbytes, end
        self._all = nbytes
        self._running = 0
        self._changed = threading.Condition()

    def run_all(self, waiting: list[Part]) -> None:
        """Runs every part that is not done. A part that needs more than there is runs alone."""
        with ThreadPoolExecutor(self._lanes) as pool:
            while waiting and time.monotonic() < self._end:
                with self._changed:
                    part = self._next(waiting)
                    if part is None:
                        self._changed.wait(1)
                        continue
                    waiting.remove(part)
                    self._take(part, 1)
                pool.submit(self._run, part)
        for part in waiting:
            print(f"{part.name}: not begun, no time was left", flush=True)

    def _next(self, waiting: list[Part]) -> Part | None:
        """The first part that may begin now. None overtakes one that runs alone."""
        for part in waiting:
            if self._has_room(part):
                return part
            if part.alone:
                return None
        return None

    def _has_room(self, part: Part) -> bool:
        if part.alone or part.nbytes > self._all:
            return self._running == 0
        return self._running < self._lanes and part.nbytes <= self._free

    def _take(self, part: Part, sign: int) -> None:
        everything = part.alone or part.nbytes > self._all
        self._free -= sign * (self._all if everything else part.nbytes)
        self._running += sign * (self._lanes if everything else 1)

    def _run(self, part: Part) -> None:
        began = time.monotonic()
        try:
            done = subprocess.run(
                part.command,
                capture_output=True,
                text=True,
                timeout=min(_PATIENCE, max(5.0, self._end + 60 - began)),
            )
            code, out, err = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as error:
            code, out, err = 124, str(error.stdout), str(error.stderr)
        seconds = time.monotonic() - began
        told = {"command": part.command, "exit code": code, "seconds": round(seconds, 2)}
        told |= {"stdout": out[-_KEPT:], "stderr": err[-_KEPT:]}
        (self._folder / f"{part.name}.json").write_text(json.dumps(told, indent=1))
        print(f"{part.name}: exit code {code}, {seconds:.1f} s", flush=True)
        if code:
            print("    " + "\n    ".join(err.strip().splitlines()[-3:]), flush=True)
        with self._changed:
            self._take(part, -1)
            self._changed.notify_all()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="parts with one of these in their name")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--lanes", type=int, default=6)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--do", help="do this part here")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    folder = asked.folder.resolve()
    if asked.do:
        from qtui_core.codec import to_plain

        found = do(asked.do, asked.device, folder)
        plain = {k: to_plain(v) for k, v in found.items()} if isinstance(found, dict) else found
        print(json.dumps(plain, indent=1, default=str))
        return
    names = asked.only.split(",")
    wanted = [*parts(folder, asked.device), *grid_parts(folder)]
    waiting = [
        part
        for part in wanted
        if any(name in part.name for name in names) and not (folder / f"{part.name}.json").exists()
    ]
    nbytes = (_total() or (64 << 30)) - _MARGIN
    Machine(folder, asked.lanes, nbytes, time.monotonic() + asked.seconds).run_all(waiting)


def _total() -> int | None:
    from qtui_core.telemetry.readings import read_devices

    found = read_devices()
    return found[0].memory_total if found else None


if __name__ == "__main__":
    main()
