"""Which loss holds under staleness: accuracy against steps where every batch is 3 to 6 versions old.

    uv run python tools/bench/staleness_learning.py DIR MODEL [MODEL ...] [--losses ...] [--staleness 3 6] [--lr 7e-4]

MODEL is a warm start, the folder `model` of a run of laminar's quick start; the first one is seed 0, and so on. In a run
staleness depends on time, so that no two runs have the same; here batch t was drawn, by an engine, with the weights of version
t - k, where k is drawn from the range of --staleness for each step. Delays, prompts, noise and learning rate are the same for
all losses. `grpo` without staleness stands beside them. A loss may have options: --losses gspo,clip_low=0.2,clip_high=0.28.
DIR/results.jsonl holds what is done, and a second call goes on. A training takes about two minutes of one core.

    uv run python tools/bench/staleness_learning.py DIR MODEL --seconds 20

measures what a batch costs with each loss: all losses in turn on the same batch, that many times, in processor time of one
thread; and what drawing it takes, which is the same for all. Steps times these seconds is accuracy against seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from tailrace.contracts import Engine, Experience, Request, Sampling, Segment
from tailrace.reward import load_verifier, read_verdict
from tailrace.reward.tasks import TaskRow, get_task
from tailrace.rollout import build_engine, generate
from tailrace.trainer import TrainerConfig
from tailrace.trainer.worker import TrainerWorker

TASK, PROMPTS, SAMPLES, HELD_OUT, MAX_TOKENS = "long-chain-sum", 32, 8, 256, 192
LOSSES = ("grpo", "decoupled-ppo", "cispo", "gspo", "tis")
FRESH = "grpo, not stale"
EVERY = 10


@dataclass(frozen=True)
class Drawn:
    """Responses to rows, `samples` for each, and whether they are right."""

    prompts: list[tuple[int, ...]]
    responses: list[tuple[tuple[int, ...], tuple[float, ...]]]
    rewards: list[float]


class Policy:
    """An engine with the tokenizer and the verifiers of the task."""

    def __init__(self, model: Path) -> None:
        self.engine: Engine = build_engine(
            "vllm", str(model), {"max_model_len": 320, "threads": 1, "apart": True, "kv_cache_bytes": 2**29}
        )
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._end = json.loads((model / "generation_config.json").read_text())["eos_token_id"]

    def draw(self, rows: list[TaskRow], samples: int, seed: int) -> Drawn:
        """Draw and score `samples` responses to each row."""
        rng = random.Random(seed)
        prompts = [tuple(self._tokenizer.encode(row["prompt"], add_special_tokens=False).ids) for row in rows]
        requests = [
            Request(str(i), prompts[i // samples], self._sampling(rng.getrandbits(31)))
            for i in range(len(rows) * samples)
        ]
        done = generate(self.engine, requests, timeout_s=600)
        responses, rewards = [], []
        for number, request in enumerate(requests):
            response = done[request.id]
            row = rows[number // samples]
            text = self._tokenizer.decode(list(response.tokens), skip_special_tokens=False)
            responses.append((response.tokens, response.logprobs))
            rewards.append(read_verdict(load_verifier(row["verifier"])(text, row["answer"], row["metadata"]))[0])
        return Drawn(prompts, responses, rewards)

    def _sampling(self, seed: int) -> Sampling:
        end = self._end if isinstance(self._end, list) else [self._end]
        return Sampling(temperature=1.0, max_tokens=MAX_TOKENS, stop_token_ids=tuple(end), seed=seed)


def experiences(drawn: Drawn, version: int, step: int) -> list[Experience]:
    return [
        Experience(
            f"{step}.{number}",
            number // SAMPLES,
            drawn.prompts[number // SAMPLES],
            (Segment(version=version, tokens=tokens, logprobs=logprobs),),
            reward=reward,
        )
        for number, ((tokens, logprobs), reward) in enumerate(zip(drawn.responses, drawn.rewards, strict=True))
    ]


def training(
    policy: Policy, model: Path, loss: str, seed: int, steps: int, lr: float, staleness: tuple[int, int]
) -> dict[str, Any]:
    """One training. Returns accuracies by step and what the metrics say, means over steps."""
    task = get_task(TASK)
    rows, held_out = task.generate("train", PROMPTS * steps, seed), task.generate("heldout", HELD_OUT, seed)
    delays = random.Random(f"delays {seed}")
    accuracy: dict[int, float] = {}
    metrics: list[dict[str, float]] = []
    with TrainerWorker(model, configured(loss, lr)) as worker:
        versions = {0: weights(worker)}
        for step in range(steps):
            version = max(0, step - (delays.randint(*staleness) if loss != FRESH else 0))
            policy.engine.load_weights(versions[version])
            if not step:
                accuracy[0] = statistics.fmean(policy.draw(held_out, 1, seed).rewards)
            drawn = policy.draw(rows[PROMPTS * step : PROMPTS * (step + 1)], SAMPLES, seed * 10_000 + step)
            worker.weights_version = step
            metrics.append(worker.step([experiences(drawn, version, step)]))
            versions[step + 1] = weights(worker)
            versions.pop(step - staleness[1], None)
            if (step + 1) % EVERY == 0:
                policy.engine.load_weights(versions[step + 1])
                accuracy[step + 1] = statistics.fmean(policy.draw(held_out, 1, seed).rewards)
    means = ("approx_kl", "clip_fraction", "effective_sample_size", "grad_norm", "step_s")
    return {
        "loss": loss,
        "seed": seed,
        "lr": lr,
        "staleness": list(staleness) if loss != FRESH else [0, 0],
        "steps": steps,
        "accuracy": accuracy,
        "reward": [round(each["reward_mean"], 4) for each in metrics],
    } | {name: statistics.fmean(each[name] for each in metrics) for name in means}


def configured(loss: str, lr: float) -> TrainerConfig:
    """The trainer of a loss with its options, as the command line names it."""
    name, *options = (part.strip() for part in loss.split(","))
    return TrainerConfig(
        lr=lr,
        warmup_steps=3,
        loss=name,
        loss_options={key: float(value) for key, _, value in (each.partition("=") for each in options) if value},
        threads=1,
        device="cpu",
        micro_batch_tokens=2048,
    )


def seconds(policy: Policy, model: Path, losses: list[str], lr: float, rounds: int) -> Iterator[str]:
    """Seconds of a batch with each loss, in turn: the median of the rounds, the least and the most; and over the first loss."""
    rows = get_task(TASK).generate("train", PROMPTS, 0)
    began = time.perf_counter()
    drawn = policy.draw(rows, SAMPLES, 0)
    drawing_s = time.perf_counter() - began
    with ExitStack() as stack:
        workers = {loss: stack.enter_context(TrainerWorker(model, configured(loss, lr))) for loss in losses}
        took: dict[str, list[float]] = {loss: [] for loss in losses}
        for number in range(rounds + 1):  # the first one loads libraries
            for loss, worker in workers.items():
                worker.weights_version = number
                batch = [experiences(drawn, 0, number)]
                began = time.process_time()
                worker.step(batch)
                took[loss].append(time.process_time() - began)
    tokens = sum(len(tokens) for tokens, _ in drawn.responses)
    yield f"{tokens} response tokens, drawn in {drawing_s:.2f} s"
    yield "| loss | seconds | over the first |"
    yield "|---|---|---|"
    first = took[losses[0]][1:]
    for loss, found in took.items():
        ratio = statistics.median(mine / its for mine, its in zip(found[1:], first, strict=True))
        yield f"| {loss} | {statistics.median(found[1:]):.3f} ({min(found[1:]):.3f}-{max(found[1:]):.3f}) | {ratio:.2f} |"


def weights(worker: TrainerWorker) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in worker.weights()}


def table(results: list[dict[str, Any]], steps: int) -> Iterator[str]:
    """Accuracies in percent, mean over seeds and their standard deviation."""
    marks = [str(step) for step in range(0, steps + 1, EVERY)]
    yield f"| lr | loss | {' | '.join(f'step {mark}' for mark in marks)} | reward, all steps | KL | clipped | sample size |"
    yield "|" + "---|" * (len(marks) + 6)
    groups: dict[tuple[float, str], list[dict[str, Any]]] = {}
    for each in results:
        groups.setdefault((each["lr"], each["loss"]), []).append(each)
    for (lr, loss), found in groups.items():
        cells = [f"{lr:g}", loss]
        cells += [spread([100 * each["accuracy"][mark] for each in found], 1) for mark in marks]
        cells.append(spread([statistics.fmean(each["reward"]) for each in found], 3))
        cells += [f"{statistics.fmean(each[name] for each in found):.4f}" for name in ("approx_kl", "clip_fraction")]
        cells.append(f"{statistics.fmean(each['effective_sample_size'] for each in found):.3f}")
        yield f"| {' | '.join(cells)} |"


def spread(values: list[float], digits: int) -> str:
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{deviation}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--losses", nargs="+", default=[FRESH, *LOSSES])
    parser.add_argument("--staleness", nargs=2, type=int, default=[3, 6])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--lr", type=float, default=7e-4)
    parser.add_argument(
        "--seconds", type=int, metavar="ROUNDS", help="what a batch costs with each loss, and nothing else"
    )
    args = parser.parse_args()
    if args.seconds:
        torch.set_num_threads(1)
        policy = Policy(args.models[0])
        print("\n".join(seconds(policy, args.models[0], args.losses, args.lr, args.seconds)))
        policy.engine.close()
        return
    args.dir.mkdir(parents=True, exist_ok=True)
    path = args.dir / "results.jsonl"
    results = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    results = [each for each in results if each.get("steps") == args.steps]
    results = [each for each in results if each["loss"] == FRESH or each["staleness"] == args.staleness]
    done = {(each["loss"], each["seed"], each["lr"]) for each in results}
    torch.set_num_threads(1)
    for seed, model in enumerate(args.models):
        left = [loss for loss in args.losses if (loss, seed, args.lr) not in done]
        policy = Policy(model) if left else None
        for loss in left:
            found = training(policy, model, loss, seed, args.steps, args.lr, tuple(args.staleness))
            results.append(json.loads(json.dumps(found)))
            with path.open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(f"seed {seed}, {loss}: {found['accuracy']}", flush=True)
        if policy is not None:
            policy.engine.close()
    print("\n".join(table(results, args.steps)))


if __name__ == "__main__":
    main()
