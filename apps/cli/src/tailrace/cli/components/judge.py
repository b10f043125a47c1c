"""``tailrace judge fit``: a small judge, fine-tuned on the spot, and its agreement with the exact verifier.

Responses are worked sums in which some minus signs are read as plus signs; the exact verifier says which are right. A small
Qwen3 learns to say yes or no behind the prompt and a response. It never sees the reference answer.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from tailrace.cli.errors import CommandError
from tailrace.cli.outputs import check_file, check_folder, write_file
from tailrace.reward import load_verifier
from tailrace.reward.judge import Judge, JudgeConfig, JudgeItem, Judgement, JudgeProcess, JudgeTemplate, Unjudged
from tailrace.reward.tasks import get_task, write_jsonl
from tailrace.reward.tasks.protocol import TaskRow
from tailrace.trainer.small_model import SmallModel
from tailrace.trainer.warmstart import DemonstrationStage, TokenizerShape, WarmStartConfig, warm_start

_FIELDS = ("response", "prompt", "answer", "rubric")
_RIGHT_FROM = 0.5
TEMPLATE = "{prompt}{response} right?"
_MISREAD = 0.35  # of the minus signs: about half of the responses are wrong then
_HELDOUT_SEED = 1  # the same questions and responses for every judge
_SCORE_S = 600.0


@dataclass(frozen=True, slots=True)
class FitOptions:
    """The command line of ``tailrace judge fit``."""

    directory: Path
    task: str = "short-chain-sum"
    seed: int = 0
    steps: int = 300
    heldout: int = 1000
    examples: int = 20_000


def fit_judge(options: FitOptions, json_file: Path | None) -> dict[str, Any]:
    """Fine-tune, measure and print; returns the figures. The directory also gets ``template.txt`` and ``heldout.jsonl``.

    Raises:
        TailraceError: the task is unknown, has too few questions, the fine-tuning failed, or the directory has files.
    """
    import asyncio

    check_folder("DIR", options.directory)  # the model takes the place of what is there
    check_file("--json", json_file)
    heldout = _responses(options.task, "heldout", options.heldout, _HELDOUT_SEED)
    examples = _responses(options.task, "train", options.examples, options.seed)
    seconds = _fine_tune(options, examples)
    write_file(options.directory / "template.txt", TEMPLATE + "\n")
    rows = ({"prompt": item.prompt, "response": item.response, "right": right} for item, right in heldout)
    write_jsonl(options.directory / "heldout.jsonl", rows)
    found = {
        "task": options.task,
        "seed": options.seed,
        "steps": options.steps,
        "fit_s": round(seconds, 1),
        "heldout": len(heldout),
        **asyncio.run(_measured(options.directory, heldout)),
    }
    print(
        f"{options.directory}: agrees with the exact verifier on {found['agreement']:.1%} of {len(heldout)} held-out "
        f"responses, the majority with {found['majority']:.1%}"
    )
    if json_file is not None:
        write_file(json_file, json.dumps(found, indent=1) + "\n")
    return found


def _responses(task_name: str, split: Any, size: int, seed: int) -> list[tuple[JudgeItem, bool]]:
    """A response to each of so many questions, and whether the exact verifier calls it right."""
    task = get_task(task_name)
    rows: list[TaskRow] = task.generate(split, size, seed)
    verify = load_verifier("numeric")
    return [
        (JudgeItem(last, prompt=prompt), verify(last, row["answer"], row["metadata"]) == 1.0)
        for row, (prompt, response) in zip(rows, task.demonstrations(rows, seed, misread=_MISREAD), strict=True)
        for last in (response if isinstance(response, str) else response[-1],)  # of several turns, the one that answers
    ]


def _fine_tune(options: FitOptions, examples: list[tuple[JudgeItem, bool]]) -> float:
    """Train a tokenizer and a model. Returns the seconds that it took."""
    template = JudgeTemplate(TEMPLATE)
    pairs = [(template.render(item), " yes" if right else " no") for item, right in examples]
    config = WarmStartConfig(
        steps=options.steps, batch=64, optimizer="muon", lr=2e-3, hold=0.5, micro_batch_tokens=8192,
        seed=options.seed, device="cpu",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as cache:
        result = warm_start(
            options.directory,
            cache,
            demonstrations=[DemonstrationStage(options.steps, pairs)],
            config=config,
            model=SmallModel(max_positions=512),
            tokenizer=TokenizerShape(vocab_size=400, words=True),
            progress=_Lines(),
        )
    return result.seconds


class _Lines:
    """Prints a line of progress every few seconds."""

    def __init__(self, every_s: float = 10.0) -> None:
        self._every_s, self._last_s = every_s, time.monotonic()

    def __call__(self, line: Mapping[str, Any]) -> None:
        if time.monotonic() - self._last_s >= self._every_s:
            self._last_s = time.monotonic()
            left = f"{line['seconds_left']:.0f} s left"
            print(
                f"step {line['step']} of {line['steps']}, loss {line['loss']:.3f}, {left}", file=sys.stderr, flush=True
            )


async def _measured(directory: Path, heldout: list[tuple[JudgeItem, bool]]) -> dict[str, Any]:
    # One thread: more only wait for each other on a model as small as this.
    config = JudgeConfig(str(directory), TEMPLATE, device="cpu", threads=1, batch_items=64)
    async with JudgeProcess(config) as judge:
        await judge.start()
        started = time.perf_counter()
        outcomes = await judge.score([item for item, _ in heldout], _SCORE_S)
        seconds = time.perf_counter() - started
    return {"score_s": round(seconds, 2), **agreement(outcomes, [right for _, right in heldout])}


# ``tailrace judge score``: a judge's scores of a file's responses, and its agreement with what the rows say.


def score_file(file: Path, config: JudgeConfig, json_file: Path | None) -> None:
    """Print each row's score as a JSON line, and a summary.

    Raises:
        CommandError: the file is no JSONL file of responses.
        RewardError: the judge cannot be made.
    """
    check_file("--json", json_file)
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
        write_file(json_file, json.dumps(found, indent=1) + "\n")


def read_items(file: Path) -> tuple[list[JudgeItem], list[bool | None]]:
    """A file's items, and whether each is right; None where its row does not say.

    Raises:
        CommandError: a line is no JSON object with a response.
        OSError: the file cannot be read.
    """
    items: list[JudgeItem] = []
    right: list[bool | None] = []
    for number, line in enumerate(file.read_bytes().split(b"\n"), start=1):  # text may hold other ends of lines
        if not line.strip():
            continue
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
