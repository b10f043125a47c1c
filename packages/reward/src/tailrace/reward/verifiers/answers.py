"""Reference answers as rows have them: which of them no response can match, and how a model would write the others."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tailrace.reward.extraction import solution_answer, unboxed
from tailrace.reward.verifiers.basic import is_number, normalise
from tailrace.reward.verifiers.notation import plain

_MAX_WORDS = 25  # of an answer in words; a worked solution has more
_WORD = re.compile(r"(?<![\\\w])[^\W\d_]{2,}")  # and no command of LaTeX: a matrix or a list has no words, however long


def unmatched(verifier: str, answer: str) -> str:
    """Why no response can be right for a reference answer, as far as the verifier's name tells; empty if one can.

    It is known of `math`, `numeric` and `exact` alone.
    """
    asked = solution_answer(answer)
    if verifier == "math":
        reference = unboxed(asked)
        if not plain(reference):
            return "it is empty"
        words = len(_WORD.findall(reference))
        return f"it is a text of {words} words, which only the same words match" if words > _MAX_WORDS else ""
    if verifier == "numeric" and not is_number(asked):
        return f"it is {asked[:40]!r} and no number" if asked.strip() else "it is empty"
    if verifier == "exact" and not normalise(asked):
        return "it is empty"
    return ""


def written(answer: str) -> Iterator[str]:
    """A reference answer as models write it: in a tag, a box, bold, a sentence, alone, and as the row has it."""
    asked = unboxed(solution_answer(answer)).strip()
    texts = (
        f"<answer>{asked}</answer>",
        rf"The answer is $\boxed{{{asked}}}$.",
        f"<think>I work it out.</think>\n<answer>{asked}</answer>",
        f"**{asked}**",
        f"The answer is {asked}.",
        f"#### {asked}",
        asked,
        f"<answer>{answer}</answer>",
        answer,
    )
    yield from dict.fromkeys(texts)
