"""What no sentence may contain, whatever it is about: a number that is none, a zero with a sign, a
plural of one, a share above all."""

from __future__ import annotations

import re

_WRONG = {
    "a number that is none": r"(?<![\w-])[-+−]?(?:nan|inf)(?![\w'])",
    "a zero with a sign": r"(?<![\w.])[-−]0(?:\.0+)?(?![\w.]*[1-9])(?:%| )",
    "a plural of one": (
        r"(?<![\w.,×:^-])1 (?!is|as|was|has|bits?\b|loss|class|less|pass|across|axis|this|its|plus"
        r"|gas|process\b|minus|standard|fits)[a-z]+s\b"
    ),
    "a verb of many for one": r"(?<![\w.,×-])1 (?:[a-z]+ )?(?:are|have|were|lie|hold)\b",
    "two spaces or stops": r"  |\.\.(?!\.)|;;|,,| [.;,](?: |$)|\(\)",
    "a hole": r"\{\w*\}|None\b(?! of| agrees)",
}


def faults_of(sentence: str) -> list[str]:
    """What is wrong with a sentence, in words; an empty list for a clean one."""
    found = [
        f"{what}: {match.group()!r}"
        for what, pattern in _WRONG.items()
        for match in re.finditer(pattern, sentence)
    ]
    for share in re.finditer(r"([\d,]+(?:\.\d+)?)% of", sentence):
        if float(share[1].replace(",", "")) > 100:
            found.append(f"a share above all: {share.group()!r}")
    return found
