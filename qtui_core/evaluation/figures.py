"""What an evaluation says of a candidate: a row for each figure, and one for each score of a token
that figures are made of. Tables, JSON, exports and gates read these rows. Standard library only."""

from __future__ import annotations

from typing import Final, Literal

from qtui_core.dataclass import dataclass


@dataclass(frozen=True)
class TokenScore:
    """A number for each scored token, which `scores.py` computes.

    Attributes:
        dtype: in recordings, as numpy writes it.
        of_original: whether the original itself has it; else it is a comparison with the original.
        later: whether recordings may lack it, as it came after the first version.
    """

    dtype: str = "<f4"
    of_original: bool = False
    later: bool = False


#: By the name of the field of `PartScored`.
TOKEN_SCORES: Final = {
    "loss": TokenScore(of_original=True),
    "divergence": TokenScore(),
    "agreement": TokenScore("|u1", of_original=True),
}


@dataclass(frozen=True)
class EvaluationFigure:
    """A figure of a candidate, by the name of the field of `EvaluationRow`.

    Attributes:
        title: of its column; "" without one.
        form: how a cell writes it: a format of Python, "bytes", or a number of significant digits.
        of: the score of tokens that it is made of, and how; None for what is made otherwise.
        key: its name in JSON, if that is another.
        note: what the column means, below the table.
        differs: whether it is a difference from the original's figure, which no JSON has.
        spare: the order in which a narrow screen leaves columns out, 1 the first; 0 for never.
        alias, unit, slack, relative, falls: as in `GateFigure`; without a slack it is no gate.
    """

    name: str
    title: str = ""
    form: str = ""
    of: tuple[str, Literal["mean", "stderr", "median", "p999", "perplexity"]] | None = None
    key: str = ""
    note: str = ""
    differs: bool = False
    spare: int = 0
    alias: str = ""
    unit: str = ""
    slack: float = 0.0
    relative: bool = True
    falls: bool = False

    @property
    def json_name(self) -> str:
        return self.key or self.name


FIGURES: Final = (
    EvaluationFigure("bits_per_parameter", "bits/param", ".3f"),
    EvaluationFigure("nbytes", "bytes", "bytes", key="bytes", spare=4),
    EvaluationFigure(
        "kl_mean", "KL", "3", ("divergence", "mean"), alias="kl", slack=0.02,
        note="KL is the Kullback-Leibler divergence of a candidate's distribution of the next "
        "token from the original's, in nats a token; ± is the standard error of its mean, from "
        "the means of the windows.",
    ),
    EvaluationFigure("kl_stderr", "±", "2", ("divergence", "stderr"), spare=6),
    EvaluationFigure("kl_median", "median", "3", ("divergence", "median"), slack=0.02, spare=3),
    EvaluationFigure("kl_p999", "99.9%", "3", ("divergence", "p999"), slack=0.05, spare=5),
    EvaluationFigure("loss", "loss", ".4f", ("loss", "mean"), slack=0.001, spare=1),
    EvaluationFigure(
        "loss_change", "change", "+.4f", differs=True,
        note="Change: of the loss, from the original's.",
    ),
    EvaluationFigure(
        "perplexity", "perplexity", "5", ("loss", "perplexity"), alias="ppl", slack=0.001, spare=2
    ),
    EvaluationFigure(
        "top1_agreement", "same top", ".2%", ("agreement", "mean"),
        alias="top1", unit="share", slack=0.002, relative=False, falls=True,
        note="Same top: the share of tokens whose most likely successor stays.",
    ),
    EvaluationFigure("nonfinite"),
)  # fmt: skip

#: Those that gates know.
LIMITED: Final = tuple(figure for figure in FIGURES if figure.slack)
