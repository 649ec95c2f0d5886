"""The model in the header line: a long path leaves room for what is known of the model."""

from __future__ import annotations

import pytest

from qtui.tui.header import fitted_title

TITLE = "/data/models/meta-llama/Llama-3.1-8B  LlamaForCausalLM  8.03 B parameters, 15 GiB"


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (len(TITLE), TITLE),
        (60, "…a/Llama-3.1-8B  LlamaForCausalLM  8.03 B parameters, 15 GiB"),
        (52, "/data/models/meta-llama/Llama-3.1-8B  LlamaForCausa…"),
        (40, "/data/models/meta-llama/Llama-3.1-8B  L…"),
        (5, "/dat…"),
        (1, "…"),
        (0, ""),
    ],
)
def test_the_beginning_of_a_path_goes_first(width: int, shown: str) -> None:
    assert fitted_title(TITLE, width) == shown


def test_a_title_without_facts_loses_its_end() -> None:
    assert fitted_title("/data/models/of-tomorrow", 12) == "/data/model…"
