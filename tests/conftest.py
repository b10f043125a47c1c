"""A run that is small enough to be a test's, with real roles: a model of two layers learns sums of two digits."""

import json
from pathlib import Path

import pytest

STEPS = 4
CONFIG = """
app = "laminar"

[task]
train = "train.jsonl"
held_out = "held_out.jsonl"
verifier = "numeric"
held_out_size = 8

[model]
path = "model"

[pipeline]
steps = {steps}
prompts_per_step = 4
samples_per_prompt = 4
prompts_per_replica = 4
buffer_prompts = 16

[rollout]
engine = "transformers"
replicas = 1
max_tokens = 16
options = {{ threads = 1, max_model_len = 48, max_num_seqs = 16 }}

[evaluation]
every = 0
controls = false

[trainer]
{trainer}
"""


class SmallRun:
    """A directory with prompts, a tokenizer and a model, and the run that is trained from them.

    Args:
        root: the directory.
        heads, kv_heads, head_dim: of the model's attention.
    """

    def __init__(self, root: Path, heads: int = 4, kv_heads: int = 2, head_dim: int = 16) -> None:
        from tailrace.reward.tasks import write_jsonl
        from tailrace.trainer.small_model import build_model  # torch, which most tests beside it do not need
        from tailrace.trainer.tokenizer import train_tokenizer

        rows = [{"prompt": f"{a} + {b} = ", "answer": str(a + b)} for a in range(10) for b in range(10)]
        write_jsonl(root / "train.jsonl", rows[8:])
        write_jsonl(root / "held_out.jsonl", rows[:8])
        self.root, self.model, self.directory = root, root / "model", root / "run"
        size = train_tokenizer([row["prompt"] for row in rows], self.model, vocab_size=64)
        build_model(
            self.model,
            vocab_size=size,
            hidden=32,
            layers=2,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            mlp=64,
        )

    def write(self, trainer: str) -> Path:
        """Write the configuration, with the lines of `[trainer]`. Returns its file."""
        path = self.root / "run.toml"
        path.write_text(CONFIG.format(steps=STEPS, trainer=trainer))
        return path

    def train(self, trainer: str, executor: str, *words: str) -> None:
        """Train all steps, with a trainer that is killed in its second backward pass. Nothing is lost, and the audit agrees.

        Args:
            trainer: the lines of `[trainer]`.
            executor: the host.
            words: more of the command line.
        """
        from tailrace.cli.main import main

        command = ["run", str(self.write(trainer)), "--run-dir", str(self.directory), "--plain"]
        assert main([*command, "--executor", executor, "--kill", "trainer@step2:backward", *words]) == 0
        summary = json.loads((self.directory / "summary.json").read_text())
        assert summary["steps"] == STEPS
        assert summary["restarts"]["trainer"] == 1
        assert summary["lost_trajectories"] == summary["contradictions"] == 0
        assert main(["audit", str(self.directory)]) == 0

    def trained(self, *words: str) -> set[str]:
        """Export the last checkpoint. Returns the names of the weights that training changed; none is missing."""
        import torch
        from transformers import AutoModelForCausalLM

        from tailrace.cli.main import main

        whole = self.root / "whole"
        assert main(["export", str(self.directory), "--out", str(whole), *words]) == 0
        before = AutoModelForCausalLM.from_pretrained(self.model).state_dict()
        after = AutoModelForCausalLM.from_pretrained(whole).state_dict()
        assert after.keys() == before.keys()
        return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """Makes small runs, each in a directory of its own."""

    def make(**attention: int) -> SmallRun:
        return SmallRun(tmp_path_factory.mktemp("small"), **attention)

    return make
