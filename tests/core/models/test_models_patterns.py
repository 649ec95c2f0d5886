"""Patterns of a configuration match as `re` does, and those that may take forever are refused."""

from __future__ import annotations

import re
import time

import pytest
from every import every

from qtui_core.errors import ModelError
from qtui_core.models.recognise import matches

NAME = "model.language_model.layers.61.mlp.experts.255.down_proj"
#: As checkpoints have them.
REAL = (
    r".*\.mlp\.gate$",
    r"model\.layers\.\d+\.(mlp|self_attn)\..*_proj",
    r".*\.layers\.(?:[0-9]|[1-5][0-9]|6[01])\.mlp\.experts\.\d+\.(gate|up|down)_proj$",
    r"^(?!.*(lm_head|router)).*\.layers\.\d+\.mlp\.experts\.\d+\.",
    r".*?experts.*?down",
)
FOREVER = (
    "(a+)+,",
    "(?x)(a+) +,",
    "(.*a){20},",
    ".*.*.*.*.*.*.*.*,",
    "(a|a)" * 30 + ",",
    ".?" * 60 + ",",
)


def test_patterns_match_or_are_refused_at_once():
    def real(text: str) -> None:
        assert matches(text, NAME) == bool(re.match(text, NAME))
        assert matches(text, NAME, "x?$") == bool(re.match(f"(?:{text})x?$", NAME))

    def refused(text: str) -> None:
        with pytest.raises(ModelError, match="take forever"):
            matches(text, "a" * 60)

    def no_expression(text: str) -> None:
        assert not matches(text, NAME)

    every(REAL, real)
    every(FOREVER, refused)
    every(("(", "a{99999999999}", "(" * 3000), no_expression)


def test_the_hardest_that_is_matched_takes_no_second():
    begun = time.process_time()
    matches(".*a.*a.*a,", "a" * 500)
    matches(".*a.*a.*a.*a,", "a" * 150)
    assert time.process_time() - begun < 1
