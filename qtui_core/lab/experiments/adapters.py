"""How much of full training do adapters reach, and in how many bytes?

LoRA, rsLoRA and DoRA are made by peft over frozen float32 weights; QLoRA is made over frozen
weights in NF4 with double quantization by bitsandbytes. Each is compared with training all weights
on the same batches. The bytes of training are those of the trained weights, their gradients and
their optimizer states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Final

import torch
from torch import nn

from qtui_core.errors import UsageError
from qtui_core.extras import MissingLibrary, importing
from qtui_core.lab.job import Job
from qtui_core.lab.numerics.products import convert, inner_linears
from qtui_core.lab.results import Cell, Findings, LabColumn, LabFrontier, Picture, Point
from qtui_core.lab.training.comparison import NULL, TWIN, LabComparison, best_rate, steps_counted
from qtui_core.lab.training.tasks import TASKS, subject_of
from qtui_core.lab.training.twins import Recipe, See, TrainedRun, null, train
from qtui_core.quant import quantize, quantized_bytes
from qtui_core.quantities import format_bytes, phrase
from qtui_core.schemes.scheme import Scheme

#: The options of peft for each method, besides rank and alpha.
_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "LoRA": {},
    "rsLoRA": {"use_rslora": True},
    "DoRA": {"use_dora": True},
    "QLoRA": {},
}
#: An adapter is called enough if it reaches this share of full training's gain.
ENOUGH: Final = 0.9
#: How QLoRA's weights are stored.
NF4: Final = "nf4:dq"
_TRAINED: Final = ("trained", "gradients", "states")
_STEP: Final = 0.3


def jobs(settings: Mapping[str, Any], model: str) -> list[Job]:
    """A run of each method for each rank and seed, of full training, and of full training from
    weights that differ by a millionth."""
    shared = {"model": model, "text": settings["text"], "steps": settings["steps"]}
    shared["alpha"] = settings["alpha"]
    cost = 4 + _STEP * settings["steps"]
    found = []
    for seed in settings["seeds"]:
        at = shared | {"seed": seed}
        for name in (TWIN, NULL):
            arguments = at | {"name": name, "lr": settings["lr"]}
            found.append(Job(f"{name} {seed}", run, arguments, TrainedRun, cost))
        for name in _names(settings):
            for rate in settings["adapter_lr"]:
                arguments = at | {"name": name, "lr": rate}
                key = _key(name, rate, seed, settings)
                found.append(Job(key, run, arguments, TrainedRun, cost))
    return found


def _key(name: str, rate: float, seed: int, settings: Mapping[str, Any]) -> str:
    several = len(settings["adapter_lr"]) > 1
    return f"{name} {rate:g} {seed}" if several else f"{name} {seed}"


def _names(settings: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{m} {rank}" for m in settings["methods"] for rank in settings["ranks"])


def run(
    see: See,
    *,
    model: str,
    text: str | None,
    name: str,
    seed: int,
    steps: int,
    lr: float,
    alpha: float,
) -> TrainedRun:
    """One run of `name`: "METHOD RANK", full training, or full training from weights that differ by
    a millionth. Raises as `adapted` does."""
    subject = subject_of(TASKS["prose"], model, text)
    if name in (TWIN, NULL):
        recipe = null() if name == NULL else Recipe()
        first = name == TWIN  # of the other only the losses of steps are used
        return train(
            subject, recipe, seed=seed, steps=steps, lr=lr, see=see, before=first, after=first
        )
    method, _, rank = name.partition(" ")
    told: list[str] = []
    frozen: list[int] = []

    def prepare(net: nn.Module) -> nn.Module:
        made, less = adapted(net, method, int(rank), alpha, seed, told)
        frozen.append(less)
        return made

    found = train(subject, Recipe(prepare=prepare), seed=seed, steps=steps, lr=lr, see=see)
    whole = found.nbytes.get("weights", 0) - sum(frozen)
    return replace(found, nbytes={**found.nbytes, "weights": whole}, notes=tuple(told))


def adapted(
    model: nn.Module, method: str, rank: int, alpha: float, seed: int, told: list[str]
) -> tuple[nn.Module, int]:
    """A model with adapters on its linear layers except the head, all other weights frozen.

    Returns the model, and how many bytes its weights take less in NF4, with the constants of NF4,
    than their tensors do. Appends to `told` what a library could not do.

    Raises ModelError for a model without such layers, MissingLibrary without peft.
    """
    names = inner_linears(model)
    with importing("An adapter", "peft"):
        from peft import LoraConfig, get_peft_model
    less = _to_nf4(model, names, told) if method == "QLoRA" else 0
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=0.0,
        target_modules=names,
        task_type="CAUSAL_LM" if hasattr(model, "config") else None,
        **_OPTIONS[method],
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return get_peft_model(model, config), less


def _to_nf4(model: nn.Module, names: Sequence[str], told: list[str]) -> int:
    """Stores the named layers in NF4, by bitsandbytes if it can do so on this machine, otherwise as
    the float32 values of their codes. Returns how many bytes their tensors take more than NF4 with
    its constants."""
    try:
        make = _four_bits()
        convert(model, names, make)
        tensors = [model.get_submodule(name).weight for name in names]
        return -sum(_constants(weight) for weight in tensors)
    except (MissingLibrary, UsageError) as error:
        told.append(f"QLoRA's weights are emulated in float32: {error}")
    scheme = Scheme.parse(NF4)
    less = 0
    for name in names:
        weight: Any = model.get_submodule(name).weight
        with torch.no_grad():
            weight.copy_(torch.from_numpy(quantize(weight.detach(), scheme).dequantize()))
        less += weight.nbytes - quantized_bytes(scheme, tuple(weight.shape))
    return less


def _four_bits() -> Callable[[nn.Linear], nn.Module]:
    """A function that makes a layer of bitsandbytes from a linear layer. Raises MissingLibrary
    without bitsandbytes, UsageError if it cannot quantize on this machine."""
    with importing("QLoRA", "bitsandbytes"):
        import bitsandbytes

    def make(linear: nn.Linear) -> nn.Module:
        layer = bitsandbytes.nn.Linear4bit(
            linear.in_features,
            linear.out_features,
            linear.bias is not None,
            compute_dtype=torch.float32,
            quant_type="nf4",
        )
        layer.weight = bitsandbytes.nn.Params4bit(
            linear.weight.data, requires_grad=False, quant_type="nf4", compress_statistics=True
        )
        layer.bias = linear.bias
        return layer.to(linear.weight.device)  # moving the layer to the device quantizes it

    try:
        tried = make(nn.Linear(64, 64))
        tried(torch.zeros(1, 64))
    except (RuntimeError, NotImplementedError, ValueError) as error:
        raise UsageError(f"bitsandbytes cannot quantize on this machine ({error}).") from error
    return make


def _constants(weight: Any) -> int:
    """The bytes of the scales of a 4-bit weight, which its tensor does not contain."""
    state = weight.quant_state
    held = [state.absmax, *([state.offset, state.state2.absmax] if state.nested else [])]
    return sum(tensor.nbytes for tensor in held)


def conclude(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> Findings:
    """A row for full training and for each adapter, the gain over the bytes, the curves, and which
    adapter is enough."""
    names = _names(settings)
    rates, seeds = settings["adapter_lr"], settings["seeds"]

    def keys(name: str) -> Callable[[float], list[str]]:
        return lambda rate: [_key(name, rate, seed, settings) for seed in seeds]

    best = {name: best_rate(rates, keys(name), outcomes) for name in names}
    chosen = {f"{n} {seed}": outcomes.get(f"{n} {seed}") for n in (TWIN, NULL) for seed in seeds}
    for name, rate in best.items():
        for seed in seeds:
            chosen[f"{name} {seed}"] = outcomes.get(_key(name, rate, seed, settings))
    runs = LabComparison(names, seeds, chosen)
    columns = (
        LabColumn("name", "trained"),
        LabColumn("lr", "lr"),
        LabColumn("trained", "trained bytes", "bytes"),
        LabColumn("weights", "all weights", "bytes"),
        LabColumn("gain", "held-out gain", "nats"),
        LabColumn("share", "of full training's", "share"),
        LabColumn("lora", "d train to LoRA"),
        LabColumn("seconds", "a step", "seconds"),
        LabColumn("diverged", "diverged"),
    )
    gains = runs.gains()
    gain = fmean(gains) if gains else None
    rows: list[dict[str, Cell]] = []
    full = runs.first(TWIN)
    if full is not None:
        rows.append(
            {
                "name": "everything",
                "lr": settings["lr"],
                "trained": _trained(full),
                "weights": full.nbytes.get("weights"),
                "gain": gain,
                "share": 1.0 if gain is not None and runs.clears(gain) else None,
                "seconds": full.seconds,
                "diverged": f"step {full.diverged}: {full.first}" if full.diverged else None,
            }
        )
    for name, found in runs.compared.items():
        held = found.held
        rows.append(
            {
                "name": name,
                "lr": best[name],
                "trained": _trained(found.runs[0]),
                "weights": found.runs[0].nbytes.get("weights"),
                "gain": None if gain is None or held is None else gain - held,
                "share": runs.share_of_gain(name),
                "lora": _beside_lora(name, runs),
                "seconds": fmean(run.seconds for run in found.runs),
                "diverged": found.diverged or None,
            }
        )
    notes = list(filter(None, (runs.chaotic, _unlike_lora(runs))))
    notes += dict.fromkeys(n for found in runs.compared.values() for n in found.runs[0].notes)
    return Findings(
        columns,
        tuple(rows),
        (*_picture(runs), *runs.charts("adapters beside full training")),
        _verdict(settings, runs, gain, best),
        runs.floor,
        tuple(notes),
    )


def _trained(run: TrainedRun) -> int:
    """The bytes of the trained weights, their gradients and their optimizer states."""
    return sum(run.nbytes.get(part, 0) for part in _TRAINED)


def _beside_lora(name: str, runs: LabComparison) -> str | None:
    """How a method compares with LoRA of the same rank, as in "better by 0.01"."""
    method, _, rank = name.partition(" ")
    found = runs.beside(name, f"LoRA {rank}") if method != "LoRA" else None
    if found is None or (floor := runs.floor) is None:
        return None
    seen = runs.judged(replace(found, floor=floor))
    if seen in ("better", "worse") and found.difference is not None:
        return f"{seen} by {abs(found.difference):.2g}"
    return seen


def _picture(runs: LabComparison) -> tuple[Picture, ...]:
    points = []
    for name in (TWIN, *runs.compared):
        run = runs.first(name)
        share = 1.0 if name == TWIN else runs.share_of_gain(name)
        if run is not None and share is not None and not run.diverged and _trained(run):
            points.append(
                Point("everything" if name == TWIN else name, _trained(run) / 2**20, share)
            )
    if len(points) < 2:
        return ()
    line, best = [], 0.0
    for point in sorted(points, key=lambda point: (point.x, -point.y)):
        if point.y > best:
            best = point.y
            line.append((point.x, point.y))
    title = "share of full training's gain over trained bytes"
    return (LabFrontier(title, "MiB", "share", tuple(line), tuple(points)),)


def _verdict(
    settings: Mapping[str, Any],
    runs: LabComparison,
    gain: float | None,
    rates: Mapping[str, float],
) -> str:
    if broken := runs.broken:
        return broken
    full = runs.first(TWIN)
    if gain is None or full is None or runs.floor is None or not runs.compared:
        return ""
    if runs.chaotic:
        return runs.chaotic
    at = f"{steps_counted(settings)} and {runs.counted}"
    if not runs.clears(gain) or gain < 0:
        return (
            f"In {at} at lr {settings['lr']:g} full training gains nothing on held-out text, so "
            "adapters have nothing to reach."
        )
    whole = f"full training's held-out gain ({gain:.2g} nats)"
    shares = {n: s for n in runs.compared if (s := runs.share_of_gain(n)) is not None}
    if not shares:
        return f"No adapter has finished its run; in {at} {whole} is what they are to reach."
    sizes = {name: _trained(runs.compared[name].runs[0]) for name in shares}
    enough = [name for name, share in shares.items() if share >= ENOUGH]
    best = min(enough, key=sizes.__getitem__) if enough else max(shares, key=shares.__getitem__)
    cost = f"with {format_bytes(sizes[best])} trained instead of {format_bytes(_trained(full))}"
    if rates[best] != settings["lr"]:
        cost += f", at lr {rates[best]:g} instead of {settings['lr']:g}"
    if enough:
        said = (
            f"{best} is the smallest adapter tried that is enough: in {at} it "
            f"reaches {shares[best]:.0%} of {whole} {cost}."
        )
    else:
        said = (
            f"In {at} no adapter reaches {ENOUGH:.0%} of {whole}: {best} reaches most, "
            f"{shares[best]:.0%} {cost}"
        )
        ill = any(share < 0 for share in shares.values())
        said += "." if ill else "; try other rates with --adapter-lr, or more --ranks."
    if spoilt := [name for name, share in shares.items() if share < 0]:
        ends = "end" if spoilt[1:] else "ends"
        said += f" {phrase(spoilt)} {ends} worse than the model began: try a lower --adapter-lr."
    return said + _frozen(runs, full)


def _unlike_lora(runs: LabComparison) -> str:
    """How the methods compare with LoRA of the same rank; empty if that is not known."""
    judged = {name: found for name in runs.compared if (found := _beside_lora(name, runs))}
    unlike = [f"{name} is {found}" for name, found in judged.items() if " by " in found]
    if not judged or runs.broken or runs.chaotic:
        return ""
    if not unlike:
        return "In training loss this run sees no difference to LoRA of the same rank."
    return f"In training loss, compared with LoRA of the same rank, {', '.join(unlike)} nats."


def _frozen(runs: LabComparison, full: TrainedRun) -> str:
    """The sentence on how many bytes of frozen weights QLoRA saves."""
    for name, found in runs.compared.items():
        here, whole = found.runs[0].nbytes.get("weights"), full.nbytes.get("weights")
        if name.startswith("QLoRA") and here and whole:
            return (
                f" {name} stores all weights in {format_bytes(here)} instead of "
                f"{format_bytes(whole)}."
            )
    return ""
