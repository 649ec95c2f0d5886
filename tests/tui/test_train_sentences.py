"""What is said about a run and its estimate, in the report, in JSON and on the screen, wherever the
run stops: it is true, and has one sign."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from types import SimpleNamespace
from typing import Any

from every import every, in_parts
from live_runs import MIB, ON_CPU, ON_GPU, PREDICTED, run
from told_truly import faults_of

from qtui.report.faces.json_face import to_json
from qtui.report.faces.plain import to_plain
from qtui.report.train.conclusion import _loss
from qtui.report.train.document import train_document
from qtui.screen.depth import Depth
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.text_picture import Canvas, TextLine
from qtui.tui.panels.train.levels import run_lines
from qtui.tui.panels.train.panel import TrainPanel
from qtui.tui.panels.train.sentences import first_of_all, loss_words
from qtui.tui.panels.train.shown import RunShown
from qtui.tui.panels.train.views.adapters_view import of_adapters
from qtui.tui.panels.train.views.components_view import ComponentsView
from qtui.tui.panels.train.views.gap_view import GapView
from qtui.tui.panels.train.views.phases_view import phase_lines
from qtui_core.live.snapshot import AdaptersCompared, End, Fault, RecordingHeader, StepTaken
from qtui_core.live.state import RunEvent, RunState, after

STEPS = 3
DRAWING = Drawing(Depth.NONE, ascii=True)
GLYPHS = DRAWING.glyphs
#: What a view needs of its panel to say what it means.
PANEL: Any = SimpleNamespace(drawing=DRAWING)
CANVAS = Canvas(100, 60, GLYPHS)
OUT = "The GPU ran out of memory."
#: Words that must not occur before two whole steps are measured.
JUDGED = (
    "too low",
    "too high",
    "right to",
    "is exact",
    "largest",
    "plan with",
    "keeps other states",
)


def state_of(lines: Sequence[RunEvent]) -> RunState:
    return reduce(after, lines, RunState())


def shown(state: RunState) -> Iterator[tuple[str, str]]:
    """(where, sentence) of everything that is said of a run."""
    yield "report", train_document(state, "a run").conclusion
    yield "JSON", json.loads(to_json(train_document(state, "a run")))["explanation"] or ""
    run = RunShown(state)
    for view in TrainPanel.VIEWS:
        yield view.TITLE, first_of_all(run) or view(PANEL).meaning(run)


def drawn(lines: Sequence[TextLine]) -> str:
    return "\n".join(" ".join(put.text for put in line) for line in lines)


@in_parts(2)
def test_a_run_that_ends_anywhere_is_told_truly(parts: int) -> None:
    """By default a run on the GPU and one on the CPU end at every other moment."""
    wrong = []
    for first, head in enumerate((ON_GPU, ON_CPU), 1):
        told = [head, *list(run(STEPS, gpu=head is ON_GPU))[1:-1]]
        for upto in range(first if parts > 1 else 1, len(told) + 1, parts):
            lines = told[:upto]
            whole = sum(isinstance(each, StepTaken) for each in lines)
            before = state_of(lines)
            fault = Fault(99.0, before.step, before.phase, "out of memory", OUT)
            ends: dict[str, list[RunEvent]] = {
                "cut off": [],
                "stopped": [End(99.0, "stopped")],
                "failed": [fault, End(99.0, "failed")],
            }
            for how, end in ends.items():
                for where, sentence in shown(state_of([*lines, *end])):
                    case = (head.device.kind, upto, how, where, sentence)
                    judged = [word for word in JUDGED if word in sentence]
                    if faults := faults_of(sentence):
                        wrong.append((*case, faults))
                    if judged and whole < 2:
                        wrong.append((*case, "judged before it is known", judged))
                    if how == "failed" and where != "JSON" and OUT not in sentence:
                        wrong.append((*case, "says not why it ended"))
                    if "stopped" in sentence and how != "stopped":
                        wrong.append((*case, "nobody stopped it"))
                    if where == "report" and how != "failed":
                        steps = {0: "No step", STEPS: "3 steps"}.get(whole, f"{whole} of 3 steps")
                        if not sentence.startswith(steps):
                            wrong.append((*case, f"not {steps}"))
                    follows = "that follow" in sentence or "so far" in sentence
                    if follows and how != "cut off":
                        wrong.append((*case, "no step follows"))
    assert not wrong, wrong[:5]


#: The losses of the steps -> what the panel says, what the report says.
LOSSES = {
    "falls": ((2.5, 2.0), "The loss fell from 2.500 to 2.000.", "The loss fell: from 2.5 to 2 "),
    "rises": ((2.0, 2.5), "The loss rose from 2.000 to 2.500.", "The loss rose: from 2 to 2.5 "),
    "stays": ((2.0, 2.1, 2.0), "as it was at first", "was 2 nats a token at first and at last"),
    "hardly moves": ((2.0001, 2.0), "as it was at first", "was 2 nats a token at first and at"),
    "begins with NaN": ((math.nan, 2.0), "The loss is no finite number in step 1.", "no number"),
    "ends in infinity": ((2.0, math.inf), "no finite number in step 2.", "no number"),
    "is lost for good": ((2.0, math.nan, math.nan), "in step 2, and in 2 of 3 steps", "no number"),
    "one step": ((2.0,), "The loss is 2.000.", "The loss was 2 nats a token."),
    "inference": ((None, None), "", ""),
}


def test_the_loss_in_every_state() -> None:
    def check(losses: tuple[float | None, ...], panel: str, report: str) -> None:
        steps = tuple(StepTaken(1.0, at, loss, 1.0, 8) for at, loss in enumerate(losses, 1))
        for said, found in ((panel, loss_words(RunState(steps=steps))), (report, _loss(losses))):
            assert said in found
            assert bool(said) == bool(found)
            assert not faults_of(found), found

    every(LOSSES, check)


TOKEN = ((" the", 0.5),)
#: The adapters after a step -> what is said, what must not be.
ADAPTED = {
    "before a step": (AdaptersCompared(0.0, 0, 0.0, 0.0, TOKEN, TOKEN), "change nothing", "lost"),
    "no change after steps": (AdaptersCompared(0.0, 9, 0.0, 0.0, TOKEN, TOKEN),
                              "After step 9 the adapters change no logit", "yet"),
    "a change": (AdaptersCompared(0.0, 9, 0.5, 0.0, TOKEN, TOKEN), "The base is untouched", "nan"),
    "the base moved": (AdaptersCompared(0.0, 9, 0.5, 0.1, TOKEN, TOKEN), "besides the adapters was "
                       "trained", "untouched"),
    "NaN": (AdaptersCompared(0.0, 9, math.nan, 0.0, TOKEN, TOKEN), "no finite", "untouched"),
    "NaN in the base": (AdaptersCompared(0.0, 9, 0.5, math.nan, (), ()), "no finite", "up to"),
}  # fmt: skip


def test_the_adapters_in_every_state() -> None:
    def check(compared: AdaptersCompared, said: str, never: str) -> None:
        report = train_document(replace(state_of([ON_GPU]), adapters=compared), "a run")
        assert "nan" not in to_plain(report)
        found = of_adapters(compared)
        assert said in found
        assert never not in found
        assert not faults_of(found), found

    every(ADAPTED, check)


def test_a_run_without_a_number_of_steps_that_was_stopped_says_so() -> None:
    told = [replace(ON_GPU, steps=None), *list(run(STEPS))[1:-1], End(99.0, "stopped")]
    assert "before the run was stopped" in train_document(state_of(told), "a run").conclusion


def test_one_sign_says_that_more_or_less_was_measured() -> None:
    """The hand-made run takes a MiB more than its estimate at each level and in each phase; with
    2 MiB more estimated it takes one less."""
    phases = tuple(
        replace(
            phase,
            allocated_bytes=phase.allocated_bytes + 2 * MIB,
            peak_held=dict(phase.peak_held) | {"weights": phase.peak_held["weights"] + 2 * MIB},
        )
        for phase in PREDICTED.phases
    )
    higher = replace(
        PREDICTED, phases=phases, peak_allocated_bytes=92 * MIB, peak_reserved_bytes=113 * MIB,
        process_bytes=530 * MIB,
    )  # fmt: skip
    for predicted, sign, low, more in (
        (PREDICTED, "+", "too low", "more than estimated"),
        (higher, "-", "too high", "less than estimated"),
    ):
        head: RecordingHeader = replace(ON_GPU, predicted=predicted)
        state = state_of([head, *list(run(STEPS))[1:]])
        document = train_document(state, "a run")
        data = json.loads(to_json(document))
        said = dict(shown(state))
        assert low in said["report"]
        assert more in said["report"]
        assert more in said["JSON"]
        assert more in said["Gap"]
        assert f"(gap {sign}1.1%)" in said["Run"]
        assert re.search(rf"unexplained part is [^(]+\({re.escape(sign)}[\d.]+ MiB\)", said["Run"])
        # Tables of the report: shares and bytes.
        text = to_plain(document).replace("−", "-")
        rows = re.findall(r"^ +loss +.* ([+-][\d.]+)%", text, re.MULTILINE)
        assert [row[0] for row in rows] == [sign]
        # Data: shares, and parts of the gap that sum to measured less estimated.
        signs = {row["error"] > 0 for row in data["phases"] if row["error"] is not None}
        assert signs == {sign == "+"}
        for level in data["levels"]:
            parts = [part["bytes"] for part in data["gap"] if part["level"] == level["level"]]
            assert sum(parts) == level["measured_bytes"] - level["estimated_bytes"]
        allocated = data["levels"][0]
        assert (allocated["measured_bytes"] > allocated["estimated_bytes"]) is (sign == "+")
        # The panel: levels, phases, parts and the gap.
        levels = drawn(run_lines(state, CANVAS))
        gap = drawn(GapView(PANEL).draw(RunShown(state), CANVAS))
        assert f"gap  {sign}1.1%" in levels.replace("gap ", "gap  ")
        assert gap.startswith(f"{sign}1 MiB allocated")
        table = drawn(phase_lines(state, CANVAS))
        assert re.search(rf"\bloss\b.*{re.escape(sign)}1\.1%", table)
        assert "gap" in table.splitlines()[0]
        parts = drawn(ComponentsView(PANEL).draw(RunShown(state), CANVAS))
        assert re.search(rf"\ball\b.*{re.escape(sign)}1\.1%", parts)
