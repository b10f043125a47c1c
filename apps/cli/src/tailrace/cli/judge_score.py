"""``tailrace judge score``: a judge's scores of a file's responses, and its agreement with what the rows say."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from tailrace.cli.errors import CommandError
from tailrace.reward.judge import Judge, JudgeConfig, JudgeItem, Judgement, Unjudged

_FIELDS = ("response", "prompt", "answer", "rubric")
_RIGHT_FROM = 0.5


def score_file(file: Path, config: JudgeConfig, json_file: Path | None) -> None:
    """Print each row's score as a JSON line, and a summary.

    Raises:
        CommandError: the file is no JSONL file of responses.
        RewardError: the judge cannot be made.
    """
    items, right = read_items(file)
    with Judge(config) as judge:
        started = time.perf_counter()
        outcomes = judge.score(items)
        seconds = time.perf_counter() - started
        peak_bytes = judge.peak_weight_bytes
    for outcome in outcomes:
        print(json.dumps({"reason": outcome.reason} if isinstance(outcome, Unjudged) else {"score": outcome}))
    found: dict[str, Any] = {
        "scored": sum(not isinstance(outcome, Unjudged) for outcome in outcomes),
        "unjudged": sum(isinstance(outcome, Unjudged) for outcome in outcomes),
        "seconds": round(seconds, 3),
        "peak_weight_bytes": peak_bytes,
        **agreement(outcomes, right),
    }
    print(json.dumps(found))
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def read_items(file: Path) -> tuple[list[JudgeItem], list[bool | None]]:
    """A file's items, and whether each is right; None where its row does not say.

    Raises:
        CommandError: a line is no JSON object with a response.
    """
    items: list[JudgeItem] = []
    right: list[bool | None] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            items.append(JudgeItem(**{name: row[name] for name in _FIELDS if name in row}))
        except (ValueError, TypeError) as error:
            raise CommandError(f"{file}:{number}: found no JSON object with a response: {error}") from error
        right.append(row.get("right"))
        said = asdict(items[-1]).values()
        if not all(isinstance(value, str) for value in said) or right[-1] not in (None, True, False):
            raise CommandError(f"{file}:{number}: expected texts, and true or false for right")
    if not items:
        raise CommandError(f"{file}: found no rows, expected at least one")
    return items, right


def agreement(outcomes: Sequence[Judgement], right: Sequence[bool | None]) -> dict[str, float]:
    """The share of rows on which a judge agrees with what they say is right (right from 0.5 on; no score does not agree), the
    share of always saying what is right more often, and the share of wrong ones among those that it calls right.
    """
    pairs = [(outcome, wanted) for outcome, wanted in zip(outcomes, right, strict=True) if wanted is not None]
    if not pairs:
        return {}
    said = [(isinstance(outcome, float) and outcome >= _RIGHT_FROM, wanted) for outcome, wanted in pairs]
    agrees = [
        not isinstance(pair[0], Unjudged) and yes == wanted for pair, (yes, wanted) in zip(pairs, said, strict=True)
    ]
    called_right = [wanted for yes, wanted in said if yes]
    share = fmean(wanted for _, wanted in said)
    return {
        "agreement": fmean(agrees),
        "majority": max(share, 1 - share),
        "wrong_called_right": 1 - fmean(called_right) if called_right else 0.0,
    }
