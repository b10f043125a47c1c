"""A small judge, fine-tuned on the spot, beside the exact verifier and the answer that is right most often.

    uv run python tools/bench/judge_agreement.py [--seeds N] [--out DIR] [--json FILE]

Responses are worked sums in which some minus signs are read as plus signs. A small Qwen3 learns to say yes or no behind the
prompt and a response; it never sees the reference answer. Each seed has its own training data and weights; all are measured
on the same responses to held-out questions, through `Judge`. With `--out` the first seed's judge is kept there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from tailrace.reward import load_verifier
from tailrace.reward.judge import Judge, JudgeConfig, JudgeItem, JudgeTemplate
from tailrace.reward.tasks import get_task
from tailrace.reward.tasks.rows import TaskRow
from tailrace.trainer.small import SmallModel
from tailrace.trainer.warmstart import DemonstrationStage, TokenizerShape, WarmStartConfig, warm_start

TEMPLATE = "{prompt}{response} right?"
MISREAD = 0.35  # of the minus signs: about half of the responses are wrong then
HELDOUT_SEED = 1
Judged = tuple[JudgeItem, bool]


def responses(rows: list[TaskRow], task_name: str, seed: int) -> list[Judged]:
    """A response to each row, and whether the exact verifier calls it right."""
    verify = load_verifier("numeric")
    demonstrations = get_task(task_name).demonstrations(rows, seed, misread=MISREAD)
    return [
        (JudgeItem(response, prompt=prompt), bool(verify(response, row["answer"], row["metadata"])))
        for row, (prompt, response) in zip(rows, demonstrations, strict=True)
    ]


def fit(directory: Path, examples: list[Judged], steps: int, lr: float, seed: int) -> float:
    """Fine-tune a judge on examples; returns the seconds that it took."""
    template = JudgeTemplate(TEMPLATE)
    pairs = [(template.render(item), " yes" if right else " no") for item, right in examples]
    result = warm_start(
        directory,
        directory.parent / "cache",
        demonstrations=[DemonstrationStage(steps, pairs)],
        config=WarmStartConfig(
            steps=steps, batch=64, optimizer="muon", lr=lr, hold=0.5, seed=seed, device="cpu", micro_batch_tokens=8192
        ),
        model=SmallModel(max_positions=512),
        tokenizer=TokenizerShape(vocab_size=400, words=True),
        progress=lambda line: print(json.dumps({k: round(v, 4) for k, v in line.items()}), flush=True),
    )
    return result.seconds


def agreement(directory: Path, examples: list[Judged]) -> dict[str, float]:
    """The share of examples on which the judge (yes from 0.5 on) and the exact verifier say the same."""
    config = JudgeConfig(str(directory), TEMPLATE, device="cpu", batch_items=64)
    started = time.perf_counter()
    with Judge(config) as judge:
        scores = judge.score([item for item, _ in examples])
    seconds = time.perf_counter() - started
    if not all(isinstance(score, float) for score in scores):
        raise SystemExit(f"a response was not judged: {next(s for s in scores if not isinstance(s, float))}")
    right = [wanted for _, wanted in examples]
    said = [float(score) >= 0.5 for score in scores]  # type: ignore[arg-type]
    yes = [a for a, b in zip(right, said, strict=True) if b]
    return {
        "agreement": statistics.fmean(a == b for a, b in zip(right, said, strict=True)),
        "wrong_called_right": statistics.fmean(not a for a in yes) if yes else 0.0,
        "score_seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="A small judge's agreement with the exact verifier.")
    parser.add_argument("--task", default="short-chain-sum")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--heldout", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)  # more only wait for each other on a model as small as this
    task = get_task(options.task)
    heldout = responses(task.generate("heldout", options.heldout, HELDOUT_SEED), options.task, HELDOUT_SEED)
    share = statistics.fmean(right for _, right in heldout)
    found = []
    with tempfile.TemporaryDirectory() as work:
        for seed in range(options.seeds):
            directory = options.out if options.out is not None and seed == 0 else Path(work) / f"judge-{seed}"
            rows = task.generate("train", options.examples, 100 + seed)
            seconds = fit(directory, responses(rows, options.task, 100 + seed), options.steps, options.lr, seed)
            found.append({"seed": seed, "fit_seconds": seconds, **agreement(directory, heldout)})
            print(json.dumps(found[-1]), flush=True)
    shares = [row["agreement"] for row in found]
    summary = {
        "task": options.task,
        "heldout": len(heldout),
        "majority": max(share, 1 - share),
        "agreement_mean": statistics.fmean(shares),
        "agreement_min": min(shares),
        "agreement_max": max(shares),
        "seeds": found,
    }
    spread = f"{summary['agreement_min']:.3f} to {summary['agreement_max']:.3f}, {len(found)} seeds"
    print(f"\n{options.task}: {len(heldout)} held-out responses; majority {summary['majority']:.3f}")
    print(f"judge's agreement with the exact verifier: {summary['agreement_mean']:.3f} ({spread})")
    if options.json is not None:
        options.json.write_text(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    main()
