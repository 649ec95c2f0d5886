"""Writes docs/lab.md and its pictures from recordings of the experiments.

    for e in underflow survive ...; do qtui lab $e --record runs/$e.jsonl; done
    python docs/make_lab.py runs

Every figure and sentence of the page but those of PARAGRAPHS and SURPRISES is of the recordings.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from qtui.report.faces.markdown import markdown_table
from qtui.report.lab.document import conclusion_of, findings_table
from qtui.report.pictures.svg import picture_svg, standalone
from qtui_core.lab.catalog import EXPERIMENTS, Experiment
from qtui_core.lab.recording import LabRecording, read_lab_recording
from qtui_core.lab.results import LabResult

FOLDER = Path(__file__).parent
#: The most rows of a table that are printed.
ROWS = 28
PARAGRAPHS = {
    "underflow": (
        "A stored weight moves only by whole steps of its format. With 7 bits of mantissa an "
        "update smaller than half of such a step is rounded away, every time. The experiment "
        "takes the "
        "updates that AdamW wants after ten batches and holds them against what each format lets "
        "through (*lost*: the share of updates that change nothing; *kept*: how much of the wanted "
        "step arrives). Then it trains: float32, and the same with weights in the format, rounded "
        "to nearest and stochastically. At 1e-5 in BF16 the share of the gain that survives is the "
        "share that was predicted from one step. A format is good enough where every tensor keeps "
        "90 % of a step, as in `survive`: the gains of norms, near 1, are the last to move."
    ),
    "survive": (
        "`underflow` for your model, text, learning rate and format, tensor by tensor: how much of "
        "a step each keeps, which terms of the optimizer are dead, and from which learning rate on "
        "the run would survive. Of a large tensor 65,536 elements are looked at."
    ),
    "matmul": (
        "A linear layer is three products: Y = X W', dX = G W, dW = G' X. A scale can be taken out "
        "of the sum only along an axis that is not summed, and each product sums another one. The "
        "errors are those of real X, W and G against float64, median over the layers."
    ),
    "lossscale": (
        "A gradient under half of the smallest number of its format becomes zero, and the loss is "
        "scaled so that fewer do. One histogram of exponents answers every format and every scale. "
        "The error of the weight gradient is measured beside it, and PyTorch's GradScaler is run "
        "from scales that are too small, right and too large."
    ),
    "optimizers": (
        "States of 16, 8 and 4 bits by the libraries that people use, on the same batches: their "
        "bytes, and the difference to float32 states. One seed and 20 steps see no difference of 4 "
        "bits; three seeds, here, do. Times of steps are of a machine that others used, too."
    ),
    "lowbit": (
        "Recipes of training in few bits, side by side, each against float32 on the same batches "
        "and against a floor. What has no kernel on a CPU is emulated and not timed. Three seeds "
        "see differences under 0.001 nats, and which recipes these are is the seeds': of single "
        "seeds fp8 flow scaled is behind by 0.0004 to 0.0014. Times of steps are of a machine that "
        "others used, too."
    ),
    "qat": (
        "Quantization-aware training beside quantization of the model as it is, and beside the "
        "control that most comparisons leave out: float32 training of the same length, quantized "
        "afterwards."
    ),
    "range-test": (
        "The precision range test: the fewest bits at which the loss "
        "falls at all (B_learn, as published), and the fewest at which it matches float32 "
        "(B_match), which is the one that is wanted."
    ),
}
SURPRISES = (
    "**E4M3 beats E5M2 for gradients once there is a scale** (`matmul`, `lossscale`): the range of "
    "E5M2 is only needed where nothing is scaled.",
    "**Second moments of few bits at beta2 0.999 rise and never fall** (`optimizers`): the step "
    "stays several times too small where gradients fall quiet beside louder ones of the same "
    "block, and in BF16 anywhere. 0.999 is the default of the libraries.",
    "**Weight decay under 2e-3 a step does nothing in BF16** (`underflow`): lr times decay is what "
    "counts, and it is nearly always less.",
    "**Rounding gradients stochastically makes one product of NVFP4 worse and the mean of many "
    "right** (`matmul`).",
    "**QAT that is held against training of the same length gains less than it seems, and more "
    "than "
    "the reports that find nothing** (`qat`).",
)


def page(found: dict[str, LabRecording]) -> str:
    """The whole page."""
    lines = ["# What low precision does to learning", ""]
    lines += [
        "`qtui lab NAME [MODEL]` runs each of these, and so does the Numerics panel. The figures "
        "are of the default settings on the demo model and the text inside the package, those of "
        "`lowbit` and `optimizers` with `--seeds 0,1,2`.",
        "",
        "What surprised us:",
        "",
        *(f"- {each}" for each in SURPRISES),
        "",
    ]
    for experiment in EXPERIMENTS:
        recording = found.get(experiment.name)
        if recording is not None and recording.result is not None:
            lines += section(experiment, recording.result)
    return "\n".join(lines)


def section(experiment: Experiment, result: LabResult) -> list[str]:
    """One experiment: paragraph, picture, table, sentence."""
    name = experiment.name
    lines = [f"## {experiment.question}", "", f"`qtui lab {name}`", "", PARAGRAPHS[name], ""]
    if result.findings.pictures:
        picture = result.findings.pictures[0]
        (FOLDER / "lab").mkdir(exist_ok=True)
        (FOLDER / "lab" / f"{name}.svg").write_text(standalone(picture_svg(picture)))
        lines += [f"![{picture.title}](lab/{name}.svg)", ""]
    table = findings_table(result.findings)
    lines += [*markdown_table(replace(table, rows=table.rows[:ROWS], tones=table.tones[:ROWS])), ""]
    if (more := len(table.rows) - ROWS) > 0:
        lines += [f"And {more} rows more, which `qtui lab {name}` prints.", ""]
    lines += [f"**{conclusion_of(result)}**", ""]
    lines += [f"- {note}" for note in result.findings.notes]
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    lines += ["", f"Seeds {', '.join(map(str, result.seeds)) or 'none'}; {versions}.", ""]
    return lines


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    recordings = {
        row.name: read_lab_recording(folder / f"{row.name}.jsonl")
        for row in EXPERIMENTS
        if (folder / f"{row.name}.jsonl").exists()
    }
    (FOLDER / "lab.md").write_text(page(recordings))
    missing = [row.name for row in EXPERIMENTS if row.name not in recordings]
    print("missing: " + ", ".join(missing) if missing else "all are there")
