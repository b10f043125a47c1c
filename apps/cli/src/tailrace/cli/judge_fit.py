"""``tailrace judge fit``: a small judge, fine-tuned on the spot, and its agreement with the exact verifier.

Responses are worked sums in which some minus signs are read as plus signs; the exact verifier says which are right. A small
Qwen3 learns to say yes or no behind the prompt and a response. It never sees the reference answer.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.cli.judge_score import agreement
from tailrace.reward import load_verifier
from tailrace.reward.judge import JudgeConfig, JudgeItem, JudgeProcess, JudgeTemplate
from tailrace.reward.tasks import get_task, write_jsonl
from tailrace.reward.tasks.rows import TaskRow
from tailrace.trainer.small import SmallModel
from tailrace.trainer.warmstart import DemonstrationStage, TokenizerShape, WarmStartConfig, warm_start

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
        TailraceError: the task is unknown, has too few questions, or the fine-tuning failed.
    """
    import asyncio

    heldout = _responses(options.task, "heldout", options.heldout, _HELDOUT_SEED)
    examples = _responses(options.task, "train", options.examples, options.seed)
    seconds = _fine_tune(options, examples)
    (options.directory / "template.txt").write_text(TEMPLATE + "\n", encoding="utf-8")
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
        json_file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
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
