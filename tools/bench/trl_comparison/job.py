"""What both sides are given, as one JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Job:
    """One run of one side: the same values for both.

    Args:
        model: directory of the warm-started model.
        train: prompts, JSONL; both sides take them in the order of Tailrace's prompt pool.
        steps: optimizer steps, one for each batch.
        snapshot_every: steps between the weights that accuracy is measured on afterwards.
        prompts: prompts of a batch.
        samples: completions of a prompt.
        max_tokens: completion tokens at most.
        lr: learning rate after the warm-up.
        threads: CPU threads of the machine that a side may use.
    """

    model: str
    train: str
    steps: int
    snapshot_every: int
    seed: int
    prompts: int = 32
    samples: int = 8
    max_tokens: int = 192
    temperature: float = 1.0
    lr: float = 7e-4
    warmup_steps: int = 3
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    grad_clip_norm: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    threads: int = 2

    @property
    def completions(self) -> int:
        """Completions of a batch."""
        return self.prompts * self.samples

    def lr_share(self, step: int) -> float:
        """Tailrace's schedule: the learning rate of a step, counted from 0, as a share of `lr`."""
        return min(1.0, (step + 1) / max(1, self.warmup_steps))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> Job:
        fields = json.loads(path.read_text())
        return cls(**{**fields, "betas": tuple(fields["betas"])})
