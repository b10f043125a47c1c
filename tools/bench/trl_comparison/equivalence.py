"""Whether TRL's loss setting is Tailrace's: gradients of both on one batch that TRL generated and scored.

    python -m trl_comparison.equivalence JOB.json OUT_DIR

The behaviour's log-probabilities are disturbed, so that ratios differ from 1 and both clip ranges are active.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from trl_comparison.job import Job

DISTURBANCE = 0.3  # nats, standard deviation


def main() -> None:
    job, out = Job.read(Path(sys.argv[1])), Path(sys.argv[2])
    import torch
    from trl_comparison.trl_side import Reward, build_trainer

    torch.set_num_threads(job.threads)
    torch.manual_seed(job.seed)
    reward = Kept(Reward(job))
    trainer = build_trainer(job, out, "padded", job.completions, reward)
    trainer.current_gradient_accumulation_steps = 1  # what the training loop would set
    trainer.model.train()
    places = [prompt for prompt in range(job.prompts) for _ in range(job.samples)]
    inputs = trainer._generate_and_score_completions(trainer.train_dataset.select(places).to_list())
    mask = inputs["completion_mask"].bool()
    with torch.no_grad():
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        seen = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        own, _, _ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, seen, mask.shape[1])
    inputs["old_per_token_logps"] = own + DISTURBANCE * torch.randn(own.shape)
    theirs = trainer._compute_loss(trainer.model, inputs)
    theirs.backward()
    gradients = {name: value.grad for name, value in trainer.model.named_parameters()}
    found = {
        "loss_type": trainer.args.loss_type,
        "completions": len(mask),
        "tokens": int(mask.sum()),
        "as_configured": compare(theirs, gradients, *our_loss(job, inputs, reward.values, None)),
        "given_trl_advantages": compare(theirs, gradients, *our_loss(job, inputs, reward.values, inputs["advantages"])),
    }
    (out / "result.json").write_text(json.dumps(found, indent=1))


class Kept:
    """The reward function, with its last values kept."""

    __name__ = "verifier"

    def __init__(self, reward: Any) -> None:
        self._reward = reward
        self.values: list[float] = []

    def __call__(self, **keywords: Any) -> list[float]:
        self.values = self._reward(**keywords)
        return self.values


def our_loss(job: Job, inputs: dict[str, Any], rewards: list[float], advantages: Any) -> tuple[Any, dict[str, Any]]:
    """Tailrace's loss of the batch and its gradients.

    Args:
        advantages: of each completion, instead of those that Tailrace computes from the rewards.
    """
    import torch

    from tailrace.contracts import Experience, Segment
    from tailrace.trainer import TrainerConfig
    from tailrace.trainer.batch import grpo_samples
    from tailrace.trainer.layout import plan
    from tailrace.trainer.losses import LossTokens
    from tailrace.trainer.microbatch import to_tensors
    from tailrace.trainer.policy_model import PREFIX, load_policy

    config = TrainerConfig(loss="dapo", loss_options={"clip_low": job.clip_low, "clip_high": job.clip_high})
    experiences = []
    for number, reward in enumerate(rewards):
        shown, kept = inputs["prompt_mask"][number].bool(), inputs["completion_mask"][number].bool()
        tokens = tuple(inputs["completion_ids"][number][kept].tolist())
        behaviour = tuple(inputs["old_per_token_logps"][number][kept].tolist())
        prompt = tuple(inputs["prompt_ids"][number][shown].tolist())
        segment = Segment(version=0, tokens=tokens, logprobs=behaviour)
        experiences.append(Experience(str(number), number // job.samples, prompt, (segment,), reward=reward))
    samples = grpo_samples([experiences], config)[0]
    if advantages is not None:
        samples = [
            dataclasses.replace(sample, advantage=value)
            for sample, value in zip(samples, advantages.tolist(), strict=True)
        ]
    policy = load_policy(job.model)
    total, tokens = 0.0, sum(len(sample.response) for sample in samples)
    for rows in plan(samples, ranks=1, token_budget=config.micro_batch_tokens, shared_prompt_tokens=384)[0]:
        batch = to_tensors(rows, torch.device("cpu"))
        logprobs, _ = policy(batch, job.temperature, False)
        of_tokens = config.open_loss().loss(LossTokens(logprobs, batch.behaviour, batch.advantages, batch.response))
        loss = (batch.weights * of_tokens).sum() / tokens
        loss.backward()
        total += float(loss.detach())
    return total, {name.removeprefix(PREFIX): value.grad for name, value in policy.named_parameters()}


def compare(their_loss: Any, theirs: dict[str, Any], our_loss: float, ours: dict[str, Any]) -> dict[str, float]:
    import torch

    names = sorted(theirs)
    assert names == sorted(ours), f"found the parameters {sorted(ours)}, expected {names}"
    their = torch.cat([theirs[name].flatten() for name in names]).double()
    our = torch.cat([ours[name].flatten() for name in names]).double()
    return {
        "trl_loss": float(their_loss),
        "tailrace_loss": our_loss,
        "gradient_cosine": float(their @ our / (their.norm() * our.norm())),
        "gradient_norm_ratio_trl_to_tailrace": float(their.norm() / our.norm()),
        "gradient_relative_difference": float((their - our).norm() / our.norm()),
    }


if __name__ == "__main__":
    main()
